"""Watch token rank while a model trains: plain PyTorch, transformers' Trainer, Lightning."""

from rankfall.audit.monitor.alarms import Alarms, RankWarning
from rankfall.audit.monitor.blocks import chosen_blocks
from rankfall.audit.monitor.lightning import lightning_callback
from rankfall.audit.monitor.logger import Log, as_log
from rankfall.audit.monitor.monitor import RankMonitor
from rankfall.audit.monitor.trainer import trainer_callback

__all__ = [
    "Alarms",
    "Log",
    "RankMonitor",
    "RankWarning",
    "as_log",
    "chosen_blocks",
    "lightning_callback",
    "trainer_callback",
]
