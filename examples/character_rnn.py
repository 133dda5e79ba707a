"""A model with a layer that no method is to drop: half of an embedding of eight is too little to read with.

`edge-fl export examples/character_rnn.py:build --dataset shakespeare --clip-norm 1 -o bundle/`
"""

from torch import Tensor, nn


class CharacterRnn(nn.Module):
    """FjORD's RNN for Shakespeare: maps tokens ``[B, 80]`` int64 to logits ``[B, 80, 90]`` of those that follow."""

    edge_fl_dense = ("embedding",)

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(90, 8)
        self.lstm = nn.LSTM(8, 128, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(128, 90)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.decoder(states)
        return logits


def build() -> CharacterRnn:
    return CharacterRnn()
