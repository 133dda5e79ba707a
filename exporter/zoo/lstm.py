"""Next-token models: an embedding, two LSTM layers, and a linear decoder.

* FedBIAD (Xue et al., arXiv:2307.07172, section V-A): words, embedding 300, 2 x 300 units; its uploads of 29.8 MB on
  PTB (vocabulary 10,000) are this model's, decoder not tied to the embedding.
* FjORD (Horvath et al., arXiv:2102.13451, appendix B.1): Shakespeare's characters, vocabulary 90 (86 characters,
  begin, end, padding, unknown), embedding 8, 2 x 128 units.
"""

from torch import Tensor, nn

from exporter.zoo.entry import Architecture, Entry

__all__ = ["ENTRIES", "NextToken", "character_rnn", "word_lstm"]


class NextToken(nn.Module):
    """Maps tokens ``[B, T]`` int64 to logits ``[B, T, vocabulary]`` of the token that follows each.

    Parameters
    ----------
    vocabulary
        Number of different tokens.
    embedding
        Length of a token's vector.
    hidden
        Units of each of the two LSTM layers. torch keeps two bias vectors a layer, of which only the sum matters:
        a paper that counts one has ``8 * hidden`` parameters fewer.
    """

    def __init__(self, *, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every token of the vocabulary at every position; the state starts at zero."""
        states, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.decoder(states)
        return logits


def character_rnn(*, hidden: int = 128) -> nn.Module:
    """Build FjORD's RNN for Shakespeare; takes ``[B, T]`` int64 below 90, gives ``[B, T, 90]`` logits."""
    return NextToken(vocabulary=90, embedding=8, hidden=hidden)


def word_lstm(*, vocabulary: int, embedding: int = 300, hidden: int = 300) -> nn.Module:
    """Build FedBIAD's LSTM; takes ``[B, T]`` int64 below V, gives ``[B, T, V]`` logits, V the vocabulary."""
    return NextToken(vocabulary=vocabulary, embedding=embedding, hidden=hidden)


def wikitext_2() -> nn.Module:
    """Build FedBIAD's LSTM for the 33,278 words of WikiText-2."""
    return word_lstm(vocabulary=33278)


ENTRIES = (
    Entry(
        name="shakespeare-rnn",
        dataset="shakespeare",
        build=character_rnn,
        input_shape=(80,),
        input_dtype="int64",
        classes=90,
        per_position=True,
        narrowed=Architecture(
            build=lambda: character_rnn(hidden=6),
            input_shape=(3,),
            input_dtype="int64",
            classes=90,
            per_position=True,
        ),
    ),
    Entry(
        name="wikitext-2-lstm",
        dataset="wikitext-2",
        build=wikitext_2,
        input_shape=(35,),
        input_dtype="int64",
        classes=33278,
        per_position=True,
        narrowed=Architecture(
            build=lambda: word_lstm(vocabulary=30, embedding=5, hidden=6),
            input_shape=(3,),
            input_dtype="int64",
            classes=30,
            per_position=True,
        ),
    ),
)
