"""First schema.

Revision: 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "hosts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hosts")),
        sa.UniqueConstraint("name", name=op.f("uq_hosts_name")),
    )
    op.create_table(
        "messages",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_messages")),
    )
    with op.batch_alter_table("messages", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_messages_sent_at"), ["sent_at"], unique=False)

    op.create_table(
        "outputs",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_outputs")),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_table(
        "commits",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("sha", sa.String(length=40), nullable=False),
        sa.Column("parents", sa.JSON(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=True),
        sa.Column("authored_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_commits_project_id_projects")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commits")),
        sa.UniqueConstraint("project_id", "sha", name=op.f("uq_commits_project_id")),
    )
    with op.batch_alter_table("commits", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_commits_position"), ["position"], unique=False)
        batch_op.create_index(batch_op.f("ix_commits_project_id"), ["project_id"], unique=False)

    op.create_table(
        "slots",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_slots_host_id_hosts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_slots")),
        sa.UniqueConstraint("host_id", "name", name=op.f("uq_slots_host_id")),
    )
    with op.batch_alter_table("slots", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_slots_host_id"), ["host_id"], unique=False)

    op.create_table(
        "suites",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_suites_project_id_projects")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suites")),
        sa.UniqueConstraint("project_id", "name", name=op.f("uq_suites_project_id")),
    )
    with op.batch_alter_table("suites", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_suites_project_id"), ["project_id"], unique=False)

    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("suite_id", sa.Integer(), nullable=False),
        sa.Column("commit_id", sa.Integer(), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("provider_run_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("pull_request", sa.Integer(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("conclusion", sa.String(length=32), nullable=True),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["commit_id"], ["commits.id"], name=op.f("fk_runs_commit_id_commits")),
        sa.ForeignKeyConstraint(["suite_id"], ["suites.id"], name=op.f("fk_runs_suite_id_suites")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("key", name=op.f("uq_runs_key")),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_runs_commit_id"), ["commit_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_recorded_at"), ["recorded_at"], unique=False)
        batch_op.create_index("ix_runs_suite_commit", ["suite_id", "commit_id"], unique=False)

    op.create_table(
        "suite_versions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("suite_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["suite_id"], ["suites.id"], name=op.f("fk_suite_versions_suite_id_suites")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suite_versions")),
        sa.UniqueConstraint("suite_id", "digest", name=op.f("uq_suite_versions_suite_id")),
    )
    with op.batch_alter_table("suite_versions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_suite_versions_suite_id"), ["suite_id"], unique=False)

    op.create_table(
        "tests",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("suite_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("stable_key", sa.String(length=64), nullable=False),
        sa.Column("report_suite", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("classname", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["suite_id"], ["suites.id"], name=op.f("fk_tests_suite_id_suites")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tests")),
        sa.UniqueConstraint("suite_id", "key", name=op.f("uq_tests_suite_id")),
    )
    with op.batch_alter_table("tests", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tests_stable_key"), ["stable_key"], unique=False)
        batch_op.create_index(batch_op.f("ix_tests_suite_id"), ["suite_id"], unique=False)

    op.create_table(
        "experiments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("suite_id", sa.Integer(), nullable=False),
        sa.Column("suite_version_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("victim", sa.Text(), nullable=False),
        sa.Column("design", sa.JSON(), nullable=False),
        sa.Column("signature", sa.JSON(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Integer(), nullable=True),
        sa.Column("child_key", sa.String(length=64), nullable=True),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("plan_digest", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["parent_id"], ["experiments.id"], name=op.f("fk_experiments_parent_id_experiments")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_experiments_project_id_projects")),
        sa.ForeignKeyConstraint(["suite_id"], ["suites.id"], name=op.f("fk_experiments_suite_id_suites")),
        sa.ForeignKeyConstraint(
            ["suite_version_id"], ["suite_versions.id"], name=op.f("fk_experiments_suite_version_id_suite_versions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiments")),
        sa.UniqueConstraint("parent_id", "child_key", name=op.f("uq_experiments_parent_id")),
    )
    with op.batch_alter_table("experiments", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_experiments_parent_id"), ["parent_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_experiments_project_id"), ["project_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_experiments_state"), ["state"], unique=False)

    op.create_table(
        "results",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("test_id", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=True),
        sa.Column("signature", sa.Text(), nullable=True),
        sa.Column("failure_type", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("output_digest", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["output_digest"], ["outputs.digest"], name=op.f("fk_results_output_digest_outputs")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_results_run_id_runs")),
        sa.ForeignKeyConstraint(["test_id"], ["tests.id"], name=op.f("fk_results_test_id_tests")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_results")),
        sa.UniqueConstraint("run_id", "test_id", "attempt", name=op.f("uq_results_run_id")),
    )
    with op.batch_alter_table("results", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_results_run_id"), ["run_id"], unique=False)
        batch_op.create_index("ix_results_test_run", ["test_id", "run_id"], unique=False)

    op.create_table(
        "arms",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("commit_id", sa.Integer(), nullable=True),
        sa.Column("treatments", sa.JSON(), nullable=False),
        sa.Column("prepared", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["commit_id"], ["commits.id"], name=op.f("fk_arms_commit_id_commits")),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], name=op.f("fk_arms_experiment_id_experiments")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arms")),
        sa.UniqueConstraint("experiment_id", "index", name=op.f("uq_arms_experiment_id")),
    )
    with op.batch_alter_table("arms", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_arms_experiment_id"), ["experiment_id"], unique=False)

    op.create_table(
        "blocks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("arms", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("host_id", sa.Integer(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("heartbeat_at", sa.Double(), nullable=True),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("attempts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_blocks_experiment_id_experiments")
        ),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_blocks_host_id_hosts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blocks")),
        sa.UniqueConstraint("experiment_id", "index", name=op.f("uq_blocks_experiment_id")),
    )
    with op.batch_alter_table("blocks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_blocks_experiment_id"), ["experiment_id"], unique=False)
        batch_op.create_index("ix_blocks_state_lease", ["state", "lease_until"], unique=False)

    op.create_table(
        "counters",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("result_id", sa.Integer(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["result_id"], ["results.id"], name=op.f("fk_counters_result_id_results")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_counters_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_counters")),
    )
    with op.batch_alter_table("counters", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_counters_result_id"), ["result_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_counters_run_id"), ["run_id"], unique=False)

    op.create_table(
        "findings",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.String(length=20), nullable=False),
        sa.Column("stop_index", sa.Integer(), nullable=True),
        sa.Column("method_version", sa.String(length=16), nullable=False),
        sa.Column("evidence_digest", sa.String(length=64), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_findings_experiment_id_experiments")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_findings")),
        sa.UniqueConstraint(
            "experiment_id", "evidence_digest", "method_version", name=op.f("uq_findings_experiment_id")
        ),
    )
    with op.batch_alter_table("findings", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_findings_experiment_id"), ["experiment_id"], unique=False)

    op.create_table(
        "measurements",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("result_id", sa.Integer(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=True),
        sa.Column("value", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["result_id"], ["results.id"], name=op.f("fk_measurements_result_id_results")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_measurements_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurements")),
    )
    with op.batch_alter_table("measurements", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_measurements_result_id"), ["result_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_measurements_run_id"), ["run_id"], unique=False)

    op.create_table(
        "executions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("block_id", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("arm", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=True),
        sa.Column("run_id", sa.Integer(), nullable=True),
        sa.Column("run_seed", sa.String(length=20), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("lost_reason", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("context", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["block_id"], ["blocks.id"], name=op.f("fk_executions_block_id_blocks")),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_executions_host_id_hosts")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_executions_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_executions")),
        sa.UniqueConstraint("block_id", "attempt", "arm", name=op.f("uq_executions_block_id")),
    )
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_executions_block_id"), ["block_id"], unique=False)


def downgrade() -> None:
    """Undo."""
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_executions_block_id"))

    op.drop_table("executions")
    with op.batch_alter_table("measurements", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_measurements_run_id"))
        batch_op.drop_index(batch_op.f("ix_measurements_result_id"))

    op.drop_table("measurements")
    with op.batch_alter_table("findings", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_findings_experiment_id"))

    op.drop_table("findings")
    with op.batch_alter_table("counters", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_counters_run_id"))
        batch_op.drop_index(batch_op.f("ix_counters_result_id"))

    op.drop_table("counters")
    with op.batch_alter_table("blocks", schema=None) as batch_op:
        batch_op.drop_index("ix_blocks_state_lease")
        batch_op.drop_index(batch_op.f("ix_blocks_experiment_id"))

    op.drop_table("blocks")
    with op.batch_alter_table("arms", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_arms_experiment_id"))

    op.drop_table("arms")
    with op.batch_alter_table("results", schema=None) as batch_op:
        batch_op.drop_index("ix_results_test_run")
        batch_op.drop_index(batch_op.f("ix_results_run_id"))

    op.drop_table("results")
    with op.batch_alter_table("experiments", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_experiments_state"))
        batch_op.drop_index(batch_op.f("ix_experiments_project_id"))
        batch_op.drop_index(batch_op.f("ix_experiments_parent_id"))

    op.drop_table("experiments")
    with op.batch_alter_table("tests", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_tests_suite_id"))
        batch_op.drop_index(batch_op.f("ix_tests_stable_key"))

    op.drop_table("tests")
    with op.batch_alter_table("suite_versions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_suite_versions_suite_id"))

    op.drop_table("suite_versions")
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index("ix_runs_suite_commit")
        batch_op.drop_index(batch_op.f("ix_runs_recorded_at"))
        batch_op.drop_index(batch_op.f("ix_runs_commit_id"))

    op.drop_table("runs")
    with op.batch_alter_table("suites", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_suites_project_id"))

    op.drop_table("suites")
    with op.batch_alter_table("slots", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_slots_host_id"))

    op.drop_table("slots")
    with op.batch_alter_table("commits", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_commits_project_id"))
        batch_op.drop_index(batch_op.f("ix_commits_position"))

    op.drop_table("commits")
    op.drop_table("tokens")
    op.drop_table("projects")
    op.drop_table("outputs")
    with op.batch_alter_table("messages", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_messages_sent_at"))

    op.drop_table("messages")
    op.drop_table("hosts")
