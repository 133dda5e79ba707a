from edge_fl.data.wikitext_2 import word_tokens


def test_words_are_numbered_by_how_often_they_occur_in_all_texts() -> None:
    """<eos> four times, b and c three, a twice, d once."""
    train, test = word_tokens([" \n b c b \n c <unk> a\n", "a b c d \n"])
    ids = {"<eos>": 0, "b": 1, "c": 2, "a": 3, "<unk>": 4, "d": 5}
    assert train.tolist() == [ids[w] for w in ["<eos>", "b", "c", "b", "<eos>", "c", "<unk>", "a", "<eos>"]]
    assert test.tolist() == [ids[w] for w in ["a", "b", "c", "d", "<eos>"]]


def test_the_order_of_articles_does_not_change_the_numbers() -> None:
    (one,), (other,) = word_tokens(["a b\nc c\n"]), word_tokens(["c c\na b\n"])
    assert one.tolist() == other.tolist()[3:] + other.tolist()[:3]


def test_the_last_line_counts_once_with_and_without_a_line_feed() -> None:
    assert [t.tolist() for t in word_tokens(["a"])] == [t.tolist() for t in word_tokens(["a\n"])]
