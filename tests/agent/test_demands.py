"""What an owner demands of every task holds against whatever a coordinator asks."""

from pathlib import Path
from typing import Any

import pytest

from broker.embedded import EmbeddedBroker
from edge_fl.agent.agent import Agent
from edge_fl.agent.demands import Demands
from edge_fl.agent.settings import AgentSettings
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Ref
from edge_fl.core.errors import ConfigError
from edge_fl.data.sources.base import open_source
from edge_fl.transport.address import BrokerAddress
from edge_fl.wire.messages import Clipping, CollectStatistics, Evaluate, Failed, Finished, Task
from tests.agent.stage import RUN, Stage, frame

MODEL = Ref("0" * 64, 1)
SCORE = Evaluate(RUN, 1, MODEL, width=1000, statistics=1000, batch=20, scores=())
COLLECT = CollectStatistics(RUN, 1, MODEL, width=1000, batch=20, seed=0)


def task(**changes: Any) -> Task:
    fields = {"method": "fedavg", "parameters": {}, **changes}
    return Task(RUN, 1, accepted=0, model=MODEL, steps=1, batch=1, lr=0.1, seed=0, tier=0, **fields)


@pytest.mark.parametrize(
    ("demands", "met"),
    [
        (Demands(), [task(), SCORE, COLLECT]),
        (Demands(noise=0.1), [task(clipping=Clipping(0.3, 0.1 * 0.3)), task(clipping=Clipping(1.0, 5.0))]),
        (Demands(noise=0.1), [task(method="feddrop", parameters={"dropout": [500]}, clipping=Clipping(1.0, 0.1))]),
        (Demands(holders=5), [task(withheld=True), task(method="fedbiad", withheld=True)]),
    ],
)
def test_what_meets_them_is_done(demands: Demands, met: list[Any]) -> None:
    for asked in met:
        demands.check(asked)


@pytest.mark.parametrize(
    ("demands", "asked", "sentence"),
    [
        (Demands(noise=0.5), task(), "noise of 0 times the clip, and this device requires 0.5"),
        (Demands(noise=0.5), task(clipping=Clipping(2.0, 0.9)), "noise of 0.45 times the clip"),
        (Demands(noise=0.5), task(withheld=True), "requires 0.5"),
        (Demands(noise=0.5), task(clipping=Clipping(1.0, 0.5, tell=True)), "whether the update was clipped"),
        (Demands(noise=0.5), task(method="fedbiad", clipping=Clipping(1.0, 0.5)), "data choose what it sends"),
        (Demands(noise=0.5), task(method="fedavg+topk", clipping=Clipping(1.0, 0.5)), "data choose what it sends"),
        (Demands(noise=0.5), SCORE, "no scores and no statistics"),
        (Demands(noise=0.5), COLLECT, "no scores and no statistics"),
        (Demands(holders=5), task(clipping=Clipping(1.0, 9.0)), "requires secure aggregation"),
        (Demands(holders=5), SCORE, "no scores and no statistics"),
        (Demands(holders=5), COLLECT, "no scores and no statistics"),
    ],
)
def test_what_does_not_is_refused(demands: Demands, asked: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        demands.check(asked)


@pytest.mark.parametrize("noise", [0.0, -1.0, float("inf"), float("nan")])
def test_no_noise_is_no_demand(noise: float) -> None:
    with pytest.raises(ConfigError, match="--require-noise"):
        Demands(noise=noise)


@pytest.mark.parametrize("holders", [1, 0, -5])
def test_a_sum_of_one_is_no_demand(holders: int) -> None:
    with pytest.raises(ConfigError, match="--require-secure-aggregation"):
        Demands(holders=holders)


def test_secure_aggregation_is_demanded_with_an_identity(tmp_path: Path) -> None:
    settings = AgentSettings(BrokerAddress("127.0.0.1", 1), "tea", tmp_path, demands=Demands(holders=5))
    with pytest.raises(ConfigError, match="needs --identity"):
        Agent(settings, open_source("digits:0/10"))


def test_a_task_with_too_little_noise_fails_and_the_next_is_done(digits_bundle: Bundle, tmp_path: Path) -> None:
    with EmbeddedBroker(port=0) as broker:
        stage = Stage(digits_bundle, broker.address, tmp_path, "digits:0/10", demands=Demands(noise=1.0))
        stage.join()
        model = stage.give(frame(digits_bundle, "model", 0, digits_bundle.weights()))
        stage.say(stage.task(model=model, clipping=Clipping(0.5, 0.4)))
        stage.hears(Failed)
        assert stage.heard[-1] == Failed(
            RUN, 1, "15", "The task adds noise of 0.8 times the clip, and this device requires 1.", "train"
        )
        later = stage.give(frame(digits_bundle, "model", 1, digits_bundle.weights()))
        stage.say(stage.task(round=2, model=later, clipping=Clipping(0.5, 0.5)))
        stage.offered(2)
        stage.say(Finished(RUN, 2))
        stage.until(lambda: bool(stage.ended))
        stage.close()
