"""Two plays of Shakespeare as data sets, and networks that read them.

macbeth.txt and twelfth_night.txt are in the public domain. They are taken from the Python package
shakespeare 0.6, which holds only editions that are stated to be in the public domain; nothing but
the ends of lines was changed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

ALPHABET = "\n !&'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The characters that the networks know, each with its place as id; others are left out."""

WINDOW = 64  # characters of a sample
WORDS = 1000  # words with an id of their own, from 1; 0 is padding
SPEAKERS = 6  # who are told apart
LONGEST = 40  # words of a speech that are read

_SPEAKER = re.compile(r"^[A-Z][A-Z ']+\.$")


class Speech(NamedTuple):
    """What a person says without interruption: several lines, without stage directions."""

    scene: str
    speaker: str
    text: str


def read_play(name: str) -> Iterator[Speech]:
    """Yield the speeches of "macbeth" or "twelfth_night" in order."""
    text = Path(__file__).with_name(f"{name}.txt").read_text(encoding="ascii")
    text = text[text.index("ACT I.") :]  # after the list of persons
    text = re.sub(r" ?\[[^\]]*\]", "", text)  # stage directions
    act = scene = ""
    for block in re.split(r"\n{2,}", text):
        first, _, lines = block.strip("\n").partition("\n")
        if first.startswith(("ACT ", "SCENE ")):
            act, scene = (
                found[0] if (found := re.findall(pattern, first)) else known
                for pattern, known in ((r"ACT [IVX]+", act), (r"SCENE [IVX]+", scene))
            )
        elif _SPEAKER.match(first) and lines.strip():
            yield Speech(f"{name}, {act}, {scene}", first[:-1], lines.strip())


def next_characters(play: str = "macbeth") -> dict[str, Any]:
    """Return pieces of 64 characters of what each speaker says: columns x and client."""
    lines: dict[str, str] = {}
    for speech in read_play(play):
        lines[speech.speaker] = lines.get(speech.speaker, "") + speech.text + "\n"
    pieces = {speaker: _cut(encode(text)) for speaker, text in lines.items()}
    owners = [speaker for speaker, own in pieces.items() for _ in own]
    return {"x": np.concatenate([*pieces.values()]), "client": owners}


def encode(text: str) -> NDArray[np.int64]:
    """Return the ids of the characters of a text."""
    return np.array([ALPHABET.index(c) for c in text if c in ALPHABET], dtype=np.int64)


def _cut(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pieces of 64 characters; the rest is left out."""
    return ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)


def who_speaks() -> dict[str, Any]:
    """Return speeches of those who speak most: columns x (ids of words), y (who) and client."""
    spoken = [speech for play in ("macbeth", "twelfth_night") for speech in read_play(play)]
    speakers = Counter(speech.speaker for speech in spoken).most_common(SPEAKERS)
    spoken = [speech for speech in spoken if speech.speaker in dict(speakers)]
    words = [re.findall(r"[a-z']+", speech.text.lower())[:LONGEST] for speech in spoken]
    counts = Counter(word for speech in words for word in speech)
    ids = {word: place for place, (word, _) in enumerate(counts.most_common(WORDS), start=1)}
    return {
        "x": [[ids.get(word, WORDS + 1) for word in speech] for speech in words],
        "y": [speech.speaker for speech in spoken],
        "client": [speech.scene for speech in spoken],
    }


class CharacterTransformer(nn.Module):
    """Logits of the next character at each position, from those up to it, (B, L) to (B, L, V).

    Args:
        width: of the embeddings.
        layers: of attention and perceptron.
    """

    def __init__(self, width: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.positions = nn.Parameter(0.02 * torch.randn(WINDOW, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.logits = nn.Linear(width, len(ALPHABET))
        self.register_buffer("hidden", torch.ones(WINDOW, WINDOW, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        states = self.encoder(self.characters(x) + self.positions, self.hidden, is_causal=True)
        logits: Tensor = self.logits(states)
        return logits


class WordScores(nn.Module):
    """Logits of the speakers: the sum of a vector per word, over √words, (B, L) to (B, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS + 2, SPEAKERS)
        self.bias = nn.Parameter(torch.zeros(SPEAKERS))
        nn.init.zeros_(self.words.weight)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the logits; `mask` is False where x is padded."""
        real = mask.to(self.bias.dtype)[..., None]
        logits: Tensor = (self.words(x) * real).sum(1) / real.sum(1).sqrt() + self.bias
        return logits
