"""What to do with records after a replay; see ``cgdebug.postprocess``."""

from ..postprocess import drain_records, export_records_to_tensorboard

__all__ = ["drain_records", "export_records_to_tensorboard"]
