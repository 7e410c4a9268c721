"""Hashes of trees, and the mirroring copy."""

import os
import subprocess

import pytest

from gpu_runner.tree import Change, Mirror, file_paths, remove, tree_hash
from tests.runner.harness import commit, git


@pytest.fixture
def snapshot(tmp_path):
    root = tmp_path / "snapshot"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "sub" / "tool").write_text("#!/bin/sh\n")
    (root / "sub" / "tool").chmod(0o755)
    (root / "link").symlink_to("a.txt")
    (root / "empty").mkdir()
    return root


@pytest.fixture
def mirror(tmp_path, snapshot):
    mirror = Mirror(tmp_path / "tree", lambda: None)
    mirror.restore(snapshot)
    return mirror


def describe(root):
    return {
        str(path.relative_to(root)): (
            path.is_dir(),
            path.readlink() if path.is_symlink() else None if path.is_dir() else path.read_bytes(),
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
        )
        for path in root.rglob("*")
    }


def test_the_hash_is_the_same_with_and_without_git(tmp_path, snapshot):
    before = tree_hash(snapshot)
    commit(snapshot)
    (snapshot / "__pycache__").mkdir()
    (snapshot / "__pycache__" / "a.pyc").write_text("x")
    tracked = git(snapshot, "ls-files").split("\n")
    assert before == tree_hash(snapshot) == tree_hash(snapshot, tracked)


@pytest.mark.parametrize("change", ["content", "mode", "link", "new", "gone"])
def test_the_hash_sees_every_change_of_a_file(snapshot, change):
    before = tree_hash(snapshot)
    match change:
        case "content":
            (snapshot / "a.txt").write_text("b")
        case "mode":
            (snapshot / "sub" / "tool").chmod(0o644)
        case "link":
            (snapshot / "link").unlink()
            (snapshot / "link").symlink_to("sub")
        case "new":
            (snapshot / "b").write_text("")
        case "gone":
            (snapshot / "a.txt").unlink()
    assert tree_hash(snapshot) != before


def test_the_hash_does_not_see_times(snapshot):
    before = tree_hash(snapshot)
    os.utime(snapshot / "a.txt", (1, 1))
    assert tree_hash(snapshot) == before


def test_a_mirror_equals_its_snapshot_after_every_kind_of_damage(snapshot, mirror):
    tree = mirror.target
    assert describe(tree) == describe(snapshot)
    (tree / "a.txt").write_text("changed")
    (tree / "sub" / "tool").unlink()
    (tree / "sub").chmod(0o000)
    (tree / "link").unlink()
    (tree / "link").mkdir()
    (tree / "link" / "deep").write_text("x")
    (tree / "empty").rmdir()
    (tree / "empty").write_text("a file now")
    (tree / "new").mkdir()
    (tree / "new" / "file").write_text("x")
    mirror.restore(snapshot)
    assert describe(tree) == describe(snapshot)


def test_an_edit_that_restores_size_and_times_is_seen_and_undone(snapshot, mirror):
    path = mirror.target / "a.txt"
    info = path.stat()
    path.write_text("b")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert mirror.changes() == [Change("changed", "a.txt")]
    mirror.restore(snapshot)
    assert path.read_text() == "a"


def test_changes_name_what_was_created_changed_and_deleted(mirror):
    (mirror.target / "a.txt").write_text("b")
    (mirror.target / "link").unlink()
    (mirror.target / "sub" / "new").write_text("x")
    assert set(mirror.changes()) == {
        Change("changed", "a.txt"),
        Change("deleted", "link"),
        Change("created", "sub/new"),
    }


def test_an_untouched_file_is_not_copied_again_even_by_the_next_runner(tmp_path, snapshot):
    memory = tmp_path / "memory.json"
    Mirror(tmp_path / "tree", lambda: None, memory).restore(snapshot)
    before = (tmp_path / "tree" / "a.txt").stat().st_ino
    Mirror(tmp_path / "tree", lambda: None, memory).restore(snapshot)
    assert (tmp_path / "tree" / "a.txt").stat().st_ino == before
    (snapshot / "a.txt").write_text("b")
    Mirror(tmp_path / "tree", lambda: None, memory).restore(snapshot)
    assert (tmp_path / "tree" / "a.txt").read_text() == "b"


def test_a_snapshot_may_hold_a_pipe_and_names_that_are_no_text(tmp_path, snapshot):
    subprocess.run(["mkfifo", snapshot / "pipe"], check=True)
    odd = os.fsdecode(b"caf\xe9 \n#")
    (snapshot / odd).write_text("x")
    mirror = Mirror(tmp_path / "tree", lambda: None, tmp_path / "memory.json")
    mirror.restore(snapshot)
    assert odd in file_paths(mirror.target)
    assert tree_hash(snapshot) == tree_hash(mirror.target)


def test_remove_takes_away_what_a_test_made_unreadable(tmp_path):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    deep.chmod(0o000)
    remove(tmp_path / "a")
    remove(tmp_path / "never existed")
    assert not (tmp_path / "a").exists()
