"""A small model with its tokenizer in a folder, for trainers that are given a path."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.attach.tools import BY_NAME


def byte_tokenizer():
    """Every byte is a token: the 256 of BPE without merges, and three more."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<bos>", "<eos>"]
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    named = dict(zip(("pad_token", "bos_token", "eos_token"), special))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def write_checkpoint(folder, name="deepseek_v3"):
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    family = BY_NAME[name]
    config = family.config()
    config.vocab_size = len(tokenizer)
    model = family.model().__class__(config)
    model.save_pretrained(folder)
    return folder
