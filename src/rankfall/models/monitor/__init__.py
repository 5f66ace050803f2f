"""Watch token rank while a model trains: plain PyTorch, transformers' Trainer, Lightning."""
