"""The plays of Shakespeare by role, character by character: sequences of 80 characters and of those that follow them.

A role's speeches, each between a begin and an end mark, are one stream, cut into sequences that do not overlap; what
is left at the end, and roles that speak less than one sequence, are left out. The last tenth of a role's sequences
(none of fewer than ten) are its test samples. 86 characters and 4 marks make the vocabulary of 90 of Reddi et al.
(2021), which FjORD (Horvath et al., 2021) uses.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.data.files import RemoteFile, read_members
from edge_fl.data.registry import Dataset, DatasetInfo, Samples
from edge_fl.data.sequences import cut_sequences, decode_text

__all__ = ["INFO", "encoder", "load", "speeches_by_role", "tokens_of"]

_LENGTH = 80
_CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
_UNKNOWN, _BEGIN, _END = 1, 2, 3  # 0 is kept for padding
_IDS = {character: 4 + i for i, character in enumerate(_CHARACTERS)}

INFO = DatasetInfo(
    "shakespeare",
    input_shape=(_LENGTH,),
    classes=4 + len(_CHARACTERS),
    input_dtype="int64",
    target_shape=(_LENGTH,),
    loss="sequence_cross_entropy",
)

_URL = (
    "https://raw.githubusercontent.com/martin-gorner/tensorflow-rnn-shakespeare/"
    "25946cd6486e8a8f96d84edb200a8b8b6e961c27/shakespeare"
)
_SHA256 = {
    "1kinghenryiv.txt": "7590d173c0be7dba0e2322b357ad33e5e65375d7af154c4ad4d7350d86652780",
    "1kinghenryvi.txt": "715e55cc52c1150bcc9ae8fb91dd61a0773d76f3750fece25978b9f8783e1d90",
    "2kinghenryiv.txt": "4a9f52f2db3ed3f0c150eefb96e25941a4a0b402addfc559581e9025186e42e5",
    "2kinghenryvi.txt": "b282843daec114f4d0104330a94a700d217ac31ce3e3fa7aa24c3e296d9992f9",
    "3kinghenryvi.txt": "6156dfad1cd8844c645ddcdc1f4db4e02397f84669ca589cfc148123170863fb",
    "allswellthatendswell.txt": "3bad3562a52b3439cb63c6f267f3fb50ef44116eafd2429011ee9908d4b832bb",
    "antonyandcleopatra.txt": "4cecd44a3320f7d66dc04fb0a50c5250b589ae8a7f8990f8eb98086b19595876",
    "asyoulikeit.txt": "eaa3526fe53859f34ecdf255712f9ecf0b2c903451d4755b2edaa2e2599cb0fc",
    "comedyoferrors.txt": "d53fcfe394885515efa22e36ac945702a899908afbc1b827ee3459cfdfca0c78",
    "coriolanus.txt": "13d7e0259fcd46cdafb125ae0b6cc8b2432fdb4fe59afba55179adea955748b5",
    "cymbeline.txt": "b5bb1a49d38e1b62b14d7c35c5d932acf740cc8c7e08fbb76ebb8379bb103b3a",
    "hamlet.txt": "1846810b98f3dce4174a488cd19f3e7ceabff2a4b00487089fbcb2891003d847",
    "juliuscaesar.txt": "d4b1254e22888a272f4245b6af4aa9b9c61fc24798d30cd0287ff9491f4d8f5f",
    "kinghenryv.txt": "62cbcdfd774cdbc30b20032ef5be5ac92d678581612567f0b54d1cdcb7fd59c5",
    "kinghenryviii.txt": "63fc4a4ec60c4c72eac474917d0c234b9fe15d19deda213c857d911a386a3c49",
    "kingjohn.txt": "251870ca2777912eed076fc30ccb32e88784a124b6ef365855bb31a1ebac34a9",
    "kinglear.txt": "674a2725884307c96398440497c889ad8cecccedf5689df85e6b0faabe4e0fe8",
    "kingrichardii.txt": "7af43884757911af0b365a9b5544e75c4d6c423c40f6b3b289b5a39756fdb1e5",
    "kingrichardiii.txt": "0b5ef70294ed26ffe2c5496e3723650e8bef5ac178c83287ef7735d9c5d2f9d5",
    "loveslabourslost.txt": "b7521b8ae6d6cff3cd4c709edfb1d9776a40756a9fc0d86d3676ed9f1621269e",
    "macbeth.txt": "339afa674ac54e5038bd610056e87b0ba70f6543b2fbcfea421bfd0fbbc21e7f",
    "measureforemeasure.txt": "1449c06143bdf48eaddf989f9136c8dbd36cf3893d75420f854085c8226ca93e",
    "merchantofvenice.txt": "54b95ab530e81bfcd03325b6bd7b14d20d1a9d41a38c2d8867c3fa8da1b6292c",
    "merrywivesofwindsor.txt": "85dfbea19962e8d21479debc0f0df48c244f05ec99e0cba9d41da0f01739a16c",
    "midsummersnightsdream.txt": "684b22072f158a7965e942d7e9b633bf7c6c65b14a7b519631bbf2f826349370",
    "muchadoaboutnothing.txt": "fad832e284ccabb6fcb5dc3dd34d2636a07358d6474f10eed8e9ed98050208ee",
    "othello.txt": "e1590d00e121e53587157fa952e0da4070b76721599ebcedce3bb698228adbab",
    "periclesprinceoftyre.txt": "f03561e0fb339fd38359093bf6a0c63bfa2c3ba1eafe66ef50aacfe91295a739",
    "romeoandjuliet.txt": "1cd830b4a8154da63839a2379f15c2e820b8fa5a339a3b751fc554a8e14af327",
    "tamingoftheshrew.txt": "87f9d1f22bb050276d1677012ea09d853aadc542ca84adcd44b82f48b4870438",
    "tempest.txt": "1f20301e552d43aaaca298af6f36334319934fac98b24306e6836d849386e6e8",
    "timonofathens.txt": "a01c9ebbf5d31936571997a4a13d3a3554ec3b081956b4da0b4a12d7f4d7581e",
    "titusandronicus.txt": "5135117e84fa127c7a4b0e376bb5ab97ac99cdad7da51ba463ba40febca44801",
    "troilusandcressida.txt": "fdf3a04f0a92ec3c61ea7349d301c4d4eae1805dfa6d6c2d6e477aeabc76e4df",
    "twelfthnight.txt": "68a44a35e82462d4f0217d2a40db874a431d666626691a806b63339118831039",
    "twogentlemenofverona.txt": "53f40375e388911699a92321eff4585ab391ecb45b0c64c0bca0389b0b767413",
    "winterstale.txt": "9a1c8f6f73264b2bfb7e1b674cc2c8690da8c3eedffc911f28de7deec449d6cd",
}
_REPACKED = RemoteFile(
    "shakespeare/shakespeare-plays.tar.gz",
    _URL,
    "a40a5048ed32c00f84ca80761dd739df75b749694008cdc4c35a7a61d3da5225",
)

_START = re.compile(r"^(ACT I|\t(INDUCTION|PROLOGUE))$", re.MULTILINE)  # before it stand the persons of the play
_DIRECTION = re.compile(r"\[[^\[\]]*\]")
_HEADING = re.compile(r"(ACT|SCENE)\b")


def load(folder: Path | None) -> Dataset:
    """Load the data set from ``folder``, else by download; raises DataError when it cannot be had."""
    published = [RemoteFile(f"shakespeare/{name}", f"{_URL}/{name}", digest) for name, digest in _SHA256.items()]
    members = dict(read_members(published, [_REPACKED], folder))
    train, test, owner = [], [], 0
    for name in sorted(_SHA256):  # the archive also holds the poems
        where = f"shakespeare/{name}"
        for speeches in speeches_by_role(decode_text(members[name], where), where).values():
            samples = cut_sequences(tokens_of(speeches), _LENGTH)
            count = len(samples.y)
            if count:
                samples = Samples(samples.x, samples.y, np.full(count, owner, dtype=np.int64))
                train.append(samples.take(np.arange(count - count // 10)))
                test.append(samples.take(np.arange(count - count // 10, count)))
                owner += 1
    return Dataset(INFO, _joined(train), _joined(test))


def speeches_by_role(play: str, where: str) -> dict[str, list[str]]:
    """What each role of a play says, speech by speech, without stage directions.

    A line ``NAME<tab>words`` begins a speech, lines that begin with a tab continue it; a name may be broken over lines,
    and headings stand after two blank lines or more.

    Raises
    ------
    DataError
        When the text has no first act; ``where`` names the file.
    """
    start = _START.search(play)
    if start is None:
        raise DataError(f"'{where}' is no play: it has no first act.")
    speeches: dict[str, list[list[str]]] = {}
    speech: list[str] = []
    name, blank = "", 0
    for line in _DIRECTION.sub("", play[start.end() :]).split("\n"):
        blank = 0 if line else blank + 1
        if blank > 1 or _HEADING.match(line):
            speech, name = [], ""  # what follows is nobody's until a role speaks
        elif line.startswith("\t"):
            speech.append(line.strip())
        elif line:
            part, spoken, words = line.partition("\t" if "\t" in line else ":")
            name = f"{name} {part.strip(': ')}".strip()
            if spoken:
                speech = [words.strip()]
                speeches.setdefault(name, []).append(speech)
                name = ""
    texts = {role: ["\n".join(filter(None, lines)) for lines in held] for role, held in speeches.items()}
    return {role: [text for text in held if text] for role, held in texts.items()}


def encoder(folder: Path | None) -> Callable[[str], NDArray[np.int64]]:
    """What makes a text the tokens of one speech; characters that there are not become the mark for unknown ones."""
    del folder  # the vocabulary is written above
    return lambda text: tokens_of([text])


def tokens_of(speeches: Sequence[str]) -> NDArray[np.int64]:
    """The stream of a role: ``[n]`` tokens, each speech between its marks."""
    stream = [
        token
        for speech in speeches
        for token in (_BEGIN, *(_IDS.get(character, _UNKNOWN) for character in speech), _END)
    ]
    return np.array(stream, dtype=np.int64)


def _joined(parts: Sequence[Samples]) -> Samples:
    owners = [part.owner for part in parts if part.owner is not None]
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    return Samples(x, y, np.concatenate(owners))
