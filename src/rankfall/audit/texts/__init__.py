"""What a model is given to read: the text that ships with the package, or the user's own files."""

from rankfall.audit.texts.batch import Batch, encode, from_ids, shuffled, with_random_tokens
from rankfall.audit.texts.shipped import shipped_text

__all__ = ["Batch", "encode", "from_ids", "shipped_text", "shuffled", "with_random_tokens"]
