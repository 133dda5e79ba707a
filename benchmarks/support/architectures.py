"""The public architectures that the table of support names: built by their libraries, as these write them.

Convolutional models are as large as published, but for their classes. Transformers have the published structure
at a small width and depth, which is all that a configuration says. Weights are random.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

from benchmarks.support.case import SupportCase
from edge_fl.core.bundle import CLASS_INDEX
from edge_fl.core.errors import ConfigError
from edge_fl.core.inputs import Input
from exporter.dropout import without_dropout

__all__ = ["ARCHITECTURES", "require_libraries"]

_CLASSES = 10
_LIBRARIES = ("torchvision", "timm", "transformers")
_IMAGE = Input((3, 64, 64), "float32")
_TOKENS = Input((12,), "int64")


def require_libraries() -> None:
    """Raise ConfigError where a library that builds them is not installed."""
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"These models are built by other libraries: pip install {' '.join(missing)}.")


def _case(
    name: str, build: Callable[[], nn.Module], input: Input = _IMAGE, target: Input = CLASS_INDEX
) -> SupportCase:
    return SupportCase(name, lambda: without_dropout(build()), input, classes=_CLASSES, target=target)


def _torchvision(name: str, **options: Any) -> SupportCase:
    def build() -> nn.Module:
        models = import_module("torchvision.models")
        return models.get_model(name, num_classes=_CLASSES, **options)  # type: ignore[no-any-return]

    return _case(f"torchvision {name}", build)


def _torchvision_vit() -> nn.Module:
    models = import_module("torchvision.models")
    return models.VisionTransformer(64, 16, 2, 4, 64, 128, num_classes=_CLASSES)  # type: ignore[no-any-return]


def _torchvision_swin() -> nn.Module:
    models = import_module("torchvision.models")
    return models.SwinTransformer(  # type: ignore[no-any-return]
        [4, 4], 32, [2, 2], [2, 4], [4, 4], num_classes=_CLASSES
    )


def _timm(name: str, **options: Any) -> SupportCase:
    def build() -> nn.Module:
        return import_module("timm").create_model(name, num_classes=_CLASSES, **options)  # type: ignore[no-any-return]

    return _case(f"timm {name}", build)


def _timm_class(name: str, *arguments: Any, **options: Any) -> SupportCase:
    def build() -> nn.Module:
        return getattr(import_module("timm.models"), name)(*arguments, num_classes=_CLASSES, **options)  # type: ignore[no-any-return]

    return _case(f"timm {name}", build)


_SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
_WORDS = {
    "vocab_size": _CLASSES,
    "max_position_embeddings": 32,
    "num_labels": _CLASSES,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _transformers(name: str, config: str, options: Mapping[str, Any], **sample: Input) -> SupportCase:
    def build() -> nn.Module:
        library = import_module("transformers")
        held = getattr(library, config)(**options)
        return getattr(library, name)(held).train()  # type: ignore[no-any-return]

    return _case(f"transformers {name}", build, **sample)


def _classifier(family: str, **options: Any) -> SupportCase:
    """Of a sequence of tokens."""
    held = {**_WORDS, **_SMALL, **options}
    return _transformers(f"{family}ForSequenceClassification", f"{family}Config", held, input=_TOKENS)


def _language(name: str, config: str, **options: Any) -> SupportCase:
    """The next token after each."""
    held = {**_WORDS, **_SMALL, **options}
    return _transformers(name, config, held, input=_TOKENS, target=_TOKENS)


def _image(family: str, **options: Any) -> SupportCase:
    held = {"image_size": 64, "patch_size": 16, "num_labels": _CLASSES, **options}
    return _transformers(f"{family}ForImageClassification", f"{family}Config", held)


_CONVOLUTIONAL = (
    _torchvision("alexnet", dropout=0.0),
    _torchvision("vgg11_bn", dropout=0.0),
    _torchvision("resnet18"),
    _torchvision("resnet50"),
    _torchvision("resnext50_32x4d"),
    _torchvision("squeezenet1_1", dropout=0.0),
    _torchvision("densenet121"),
    _torchvision("mobilenet_v2"),
    _torchvision("mobilenet_v3_small"),
    _torchvision("shufflenet_v2_x0_5"),
    _torchvision("mnasnet0_5"),
    _torchvision("efficientnet_b0"),
    _torchvision("regnet_y_400mf"),
    _torchvision("convnext_tiny"),
    _timm("ghostnet_050"),
    _timm_class("ConvMixer", 64, 4, kernel_size=5, patch_size=4),
    _timm_class("MlpMixer", img_size=64, patch_size=16, embed_dim=64, num_blocks=2),
    _timm("repvgg_a0"),
    _timm("hardcorenas_a"),
    _timm("regnetx_002"),
)

_ATTENTIVE = (
    _case("torchvision VisionTransformer", _torchvision_vit),
    _case("torchvision SwinTransformer", _torchvision_swin),
    _timm("vit_tiny_patch16_224", img_size=64, depth=2),
    _timm("deit_tiny_patch16_224", img_size=64, depth=2),
    _timm("mobilevit_xxs"),
    _timm("cait_xxs24_224", img_size=64, depth=2, depth_token_only=1),
    _timm("xcit_nano_12_p16_224", img_size=64, depth=2),
    _timm("poolformer_s12"),
    _timm("edgenext_xx_small"),
    _image("ViT", **_SMALL),
    _image("DeiT", **_SMALL),
    _image("Beit", **_SMALL),
    _image("Swin", patch_size=4, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4, drop_path_rate=0.0),
    _image("ConvNext", patch_size=2, depths=[2, 2, 2, 2], hidden_sizes=[16, 32, 64, 128]),
    _image("ResNet", embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[2, 2, 2, 2], layer_type="basic"),
)

_LANGUAGE = (
    _classifier("Bert"),
    _classifier("Roberta"),
    _classifier("DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    _classifier("Albert", embedding_size=32),
    _classifier("Electra", embedding_size=32),
    _classifier("MPNet"),
    _classifier("SqueezeBert", embedding_size=64),
    _language("GPT2LMHeadModel", "GPT2Config", n_embd=64, n_layer=2, n_head=4),
    _language("GPTNeoXForCausalLM", "GPTNeoXConfig"),
    _language("OPTForCausalLM", "OPTConfig", ffn_dim=128, word_embed_proj_dim=64),
    _language("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2),
    _language("MistralForCausalLM", "MistralConfig", num_key_value_heads=2, sliding_window=None),
    _language("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2),
    _language("GemmaForCausalLM", "GemmaConfig", num_key_value_heads=2, head_dim=16),
    _language("PhiForCausalLM", "PhiConfig"),
)

ARCHITECTURES = (*_CONVOLUTIONAL, *_ATTENTIVE, *_LANGUAGE)
"""Every line of the table."""
