"""Every target. A full campaign is ten million cases in all."""

from fuzz.target import Target

__all__ = ["TARGETS"]

_MESSAGES = [
    "register",
    "want",
    "offer",
    "evaluated",
    "collected_statistics",
    "keys",
    "shares",
    "unmasked",
    "failed",
    "gone",
    "keep",
    "hello",
    "registered",
    "refused",
    "task",
    "evaluate",
    "collect_statistics",
    "make_keys",
    "share_keys",
    "send_masked",
    "unmask",
    "verdict",
    "finished",
    "final",
]
_SECTIONS = ["sparse", "topk", "dgc", "randk", "stc", "signsgd", "fedpaq", "fractional", "tcs"]
_SOURCES = {
    "csv": 100_000,
    "npz": 100_000,
    "idx": 100_000,
    "images": 100_000,
    "text": 100_000,
    "parquet": 100_000,
    "tokenizer": 100_000,
}
_LOADERS = ["onnx", "executorch", "executorch_training", "torch_eager"]
_LOADER_CASES, _LOADER_MEGABYTES, _LONGEST_PROGRAM = 10_000, 2048, 1 << 16

TARGETS: tuple[Target, ...] = (
    *(Target(f"message-{name}", f"fuzz.targets.messages:message:{name}", 200_000) for name in _MESSAGES),
    Target("signed-coordinator", "fuzz.targets.signed:coordinator", 100_000),
    Target("signed-device", "fuzz.targets.signed:device", 100_000),
    Target("enrol-token", "fuzz.targets.enrolment:token", 200_000, longest=512),
    Target("enrol-request", "fuzz.targets.enrolment:request", 100_000),
    Target("enrol-answer", "fuzz.targets.enrolment:answer", 100_000),
    Target("enrol-record", "fuzz.targets.enrolment:record", 100_000),
    Target("topic", "fuzz.targets.messages:topic", 500_000, longest=256),
    Target("frame", "fuzz.targets.wire:frame", 500_000),
    Target("mask", "fuzz.targets.wire:mask", 300_000, longest=64),
    Target("golomb", "fuzz.targets.wire:positions:golomb", 500_000, longest=512),
    Target("block", "fuzz.targets.wire:positions:block", 500_000, longest=512),
    *(Target(f"section-{name}", f"fuzz.targets.wire:section:{name}", 250_000) for name in _SECTIONS),
    Target("update", "fuzz.targets.wire:update", 200_000, longest=1 << 16),
    Target("partial-sum", "fuzz.targets.wire:partial_sum", 200_000, longest=1 << 12),
    Target("roster", "fuzz.targets.wire:roster", 200_000, longest=1 << 12),
    Target("participant", "fuzz.targets.aggregation:participant", 100_000, longest=256),
    Target("manifest", "fuzz.targets.files:manifest", 100_000, longest=1 << 16),
    Target("settings", "fuzz.targets.files:settings", 100_000),
    Target("parameters", "fuzz.targets.files:parameters", 100_000, longest=512),
    Target("checkpoint", "fuzz.targets.files:checkpoint", 100_000),
    Target("kept-model", "fuzz.targets.files:kept_model", 100_000),
    Target("method-state", "fuzz.targets.files:method_state", 100_000),
    Target("state-owner", "fuzz.targets.files:owner", 100_000, longest=256),
    Target("believed", "fuzz.targets.files:believed", 100_000, longest=512),
    Target("identity", "fuzz.targets.files:identity", 100_000),
    Target("authority", "fuzz.targets.files:authority", 100_000),
    *(Target(f"data-{name}", f"fuzz.targets.sources:{name}", cases) for name, cases in _SOURCES.items()),
    Target("answer", "fuzz.targets.answers:answer", 200_000),
    Target("external-data", "fuzz.targets.programs:external_data", 200_000, longest=_LONGEST_PROGRAM),
    *(
        Target(
            f"load-{name}",
            f"fuzz.targets.programs:{name}",
            _LOADER_CASES,
            longest=_LONGEST_PROGRAM,
            megabytes=_LOADER_MEGABYTES,
        )
        for name in _LOADERS
    ),
    Target("transfer", "fuzz.targets.machines:transfer", 200_000, longest=256),
    Target("inbox", "fuzz.targets.machines:inbox", 200_000, longest=256),
    Target("gateway", "fuzz.targets.gateway:gateway", 100_000, longest=256),
    Target("device", "fuzz.targets.device:device", 100_000, longest=256),
)
