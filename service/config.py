"""Settings: the only reader of the environment in the service and the workers."""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

SOCKET_PATH_MAX = 100  # Linux allows 107 bytes


def _default_home() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "likewise"


class Settings(BaseSettings):
    """Every setting is one field here and the variable LIKEWISE_<FIELD> outside."""

    model_config = SettingsConfigDict(env_prefix="LIKEWISE_", extra="ignore")

    home: Path = Field(default_factory=_default_home, description="folder for database, slots, logs")
    database_url: str = Field(default="", description="empty: SQLite in the home folder")
    broker_url: str = Field(default="", description="empty: an embedded Valkey, started by `likewise up`")
    host: str = Field(default="127.0.0.1", description="address that the dashboard listens on")
    port: int = Field(default=8321, description="port that the dashboard listens on")
    public_url: str = Field(default="", description="address that links in comments and output use")
    lease_s: float = Field(default=30.0, gt=0, description="seconds without a heartbeat until a block is lost")
    sweep_s: float = Field(default=5.0, gt=0, description="seconds between sweeps")
    nudge_s: float = Field(default=30.0, gt=0, description="seconds until a waiting block is announced again")
    slot: str = Field(default="0", description="name of the slot that this worker runs blocks in")
    require_tokens: bool = Field(default=False, description="ask for a token even on loopback, reads included")
    attempts_max: int = Field(default=3, ge=1, description="times that a block is tried before it is dropped")
    upload_limit_bytes: int = Field(default=256 * 1024 * 1024, description="largest accepted upload")

    @property
    def effective_database_url(self) -> str:
        """Return the database's URL, SQLite in `home` by default."""
        return self.database_url or f"sqlite:///{self.home / 'likewise.db'}"

    @property
    def broker_socket(self) -> Path:
        """Return the path of the embedded broker's socket, in the temporary folder when `home` is too long for one."""
        wanted = self.home / "broker.sock"
        if len(str(wanted)) <= SOCKET_PATH_MAX:
            return wanted
        name = hashlib.sha256(str(self.home).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"likewise-{name}.sock"

    @property
    def effective_broker_url(self) -> str:
        """Return the broker's URL, the embedded one's socket by default."""
        return self.broker_url or f"redis+socket://{self.broker_socket}"

    @property
    def effective_public_url(self) -> str:
        """Return the address that links use."""
        return self.public_url or f"http://{self.host}:{self.port}"

    @property
    def slot_dir(self) -> Path:
        """Return the folder of this worker's slot."""
        return self.home / "slots" / self.slot


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the process's settings, read once; tests call `settings.cache_clear()`."""
    return Settings()
