"""Task names, and sending: after commit, ids only. The database row is the truth, a message is a nudge."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError

from service.config import settings
from service.errors import BrokerUnavailableError
from service.store.messages import mark_sent, unsent
from service.store.session import read, write

CONTROL_QUEUE = "control"
GPU_QUEUE = "gpu"
TASKS = {
    "schedule": ("likewise.schedule", CONTROL_QUEUE),
    "execute": ("likewise.execute", GPU_QUEUE),
    "analyse": ("likewise.analyse", CONTROL_QUEUE),
    "report": ("likewise.report", CONTROL_QUEUE),
}
# Longer than any message stays un-acknowledged: tasks are acknowledged when they start.
VISIBILITY_TIMEOUT_S = 3600


@lru_cache(maxsize=2)
def celery_app(broker_url: str) -> Celery:
    """Return the Celery app of a broker: no results, acknowledged on start, quick to notice a lost broker."""
    app = Celery("likewise", broker=broker_url)
    app.conf.update(
        task_ignore_result=True,
        task_default_queue=CONTROL_QUEUE,
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=3,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "socket_connect_timeout": 3,
            "socket_timeout": 10,
            "retry_on_timeout": True,
            "max_retries": 2,
            "interval_start": 0.1,
            "interval_step": 0.2,
        },
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        task_serializer="json",
        accept_content=["json"],
    )
    return app


def app() -> Celery:
    """Return the Celery app of the settings' broker."""
    return celery_app(settings().effective_broker_url)


def send(task: str, target_id: int) -> None:
    """Send one nudge; BrokerUnavailableError when the broker does not answer."""
    name, queue = TASKS[task]
    try:
        app().send_task(name, args=[target_id], queue=queue, retry=False)
    except (OperationalError, RedisError, OSError) as error:
        raise BrokerUnavailableError(url=settings().effective_broker_url, detail=str(error) or "no answer") from error


def flush() -> int:
    """Send the messages of committed transactions and return their number; what cannot be sent stays for the sweep.

    Raises BrokerUnavailableError after keeping the rest; callers at the edge decide whether that matters to them.
    """
    with read() as session:
        waiting = [(message.id, message.task, message.target_id) for message in unsent(session)]
    sent: list[int] = []
    try:
        for message_id, task, target_id in _without_repeats(waiting):
            if task is not None:
                send(task, target_id)
            sent.append(message_id)
    finally:
        if sent:
            with write() as session:
                mark_sent(session, sent, datetime.now(UTC))
    return len(sent)


def _without_repeats(waiting: Iterable[tuple[int, str, int]]) -> Iterable[tuple[int, str | None, int]]:
    """Give each (task, target) once; a repetition is marked sent without being sent."""
    seen: set[tuple[str, int]] = set()
    for message_id, task, target_id in waiting:
        yield message_id, None if (task, target_id) in seen else task, target_id
        seen.add((task, target_id))


def ping(timeout_s: float = 3.0) -> float:
    """Return the seconds that the broker took to answer; BrokerUnavailableError when it does not in `timeout_s`."""
    url = settings().effective_broker_url
    started = time.monotonic()
    client = Redis.from_url(
        url.replace("redis+socket://", "unix://"), socket_connect_timeout=timeout_s, socket_timeout=timeout_s
    )
    try:
        client.ping()
    except (RedisError, OSError) as error:
        raise BrokerUnavailableError(url=url, detail=str(error) or "no answer") from error
    finally:
        client.close()
    return time.monotonic() - started
