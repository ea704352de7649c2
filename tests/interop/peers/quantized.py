#!/usr/bin/env python3
"""Models that the real libraries quantize are dequantized by `unishard zero_to_fp32` and `convert --dtype`, to the bits that the
libraries compute themselves: in the type in which a library gives its weights, and cast from there to fp32, bf16 and fp16.

  quantized.py BUILD

Exit status: 0 all equal, 1 something differs, 77 something is not installed. A library that is not installed makes one row "skipped".
"""
import argparse
import json
import pathlib
import sys
import tempfile

import truth

OVERLAYS = pathlib.Path(__file__).resolve().parents[3] / "build/zoo"  # what run.sh --setup --zoo installs
sys.path += [str(OVERLAYS / name) for name in ("bitsandbytes-0.50", "torchao", "compressed-tensors", "loguru")]
TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Judge:
    def __init__(self, build, scratch):
        self.program, self.scratch, self.failed, self.cases = build / "bin/unishard", scratch, 0, 0

    def row(self, name, tensors, config, expected, metadata=None):
        """expected: {name: tensor}, floats in the type in which the quantizer's library gives them."""
        import torch
        from safetensors.torch import load_file, save_file
        self.cases += 1
        model = self.scratch / f"model{self.cases}"
        model.mkdir()
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, model / "model.safetensors",
                  {"format": "pt", **(metadata or {})})
        (model / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", "quantization_config": config}))
        wrong = []
        for dtype, torch_type in TYPES.items():
            outputs = [("convert", "--to", "safetensors", "--dtype", dtype)]
            if dtype == "fp32":
                outputs.append(("zero_to_fp32",))
            for number, (verb, *options) in enumerate(outputs):
                folder = self.scratch / f"out{self.cases}{dtype}{number}"
                truth.run(self.program, verb, model, folder, "-q", *options)
                found = load_file(folder / "model.safetensors")
                for key, tensor in expected.items():
                    wanted = tensor.to(getattr(torch, torch_type)).contiguous()
                    same = key in found and found[key].shape == wanted.shape and found[key].dtype == wanted.dtype and torch.equal(
                        found[key].view(torch.uint8), wanted.view(torch.uint8))
                    wrong += [] if same else [f"{verb} {dtype} {key}"]
                wrong += [f"{verb} {dtype} has {key}" for key in found.keys() - expected.keys()]
                written = json.loads((folder / "config.json").read_text())
                if written != {"torch_dtype": torch_type}:
                    wrong.append(f"config.json {written}")
        self.say(name, len(expected), wrong)

    def say(self, name, count, wrong):
        self.failed += bool(wrong)
        print(f"{name:70} {count:>3} tensors {'equal' if not wrong else 'DIFFERS ' + ', '.join(wrong[:4])}", flush=True)


def random(*shape, seed=0):
    import torch
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.02


def float8(tensor, scale):
    import torch
    return (tensor / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def blocks(judge):
    """transformers' fp8, and its exponents in bytes; blocks that overlap the end as DeepSeek's kernel computes them."""
    import torch
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    theirs = Fp8Dequantize(None)
    norm = random(16).bfloat16()
    for scale_type in ("float32", "bfloat16", "float8_e8m0fnu", "uint8"):
        scale = torch.rand(2, 3) * 0.01 + 1e-4
        if scale_type == "uint8":
            scale = torch.randint(100, 140, (2, 3), dtype=torch.uint8)
        else:
            scale = scale.to(getattr(torch, scale_type))
        weight = float8(random(64, 96), 1e-4)
        whole = theirs._dequantize_one(weight, scale, torch.float32)
        judge.row(f"transformers fp8, scales of {scale_type}", {"a.weight": weight, "a.weight_scale_inv": scale, "norm": norm},
                  {"quant_method": "fp8", "weight_block_size": [32, 32]}, {"a.weight": whole, "norm": norm})
    scale = torch.rand(2, 3) + 0.1
    weight = float8(random(192, 300, seed=1), 1e-4)
    whole = weight.float() * scale.repeat_interleave(128, 0)[:192].repeat_interleave(128, 1)[:, :300]
    judge.row("fp8, blocks of 128 that overlap the end", {"a.weight": weight, "a.weight_scale_inv": scale},
              {"quant_method": "fp8", "weight_block_size": [128, 128]}, {"a.weight": whole})


def rows(judge):
    """fbgemm_fp8 has a scale for each row, ModelOpt one for all, as their kernels multiply them."""
    import torch
    scale = torch.rand(48, 1) + 0.1
    weight = float8(random(48, 32), 1e-4)
    judge.row("transformers fbgemm_fp8", {"a.weight": weight, "a.weight_scale": scale}, {"quant_method": "fbgemm_fp8"},
              {"a.weight": weight.float() * scale})
    one = torch.tensor(0.0123)
    judge.row("ModelOpt FP8", {"a.weight": weight, "a.weight_scale": one, "a.input_scale": torch.tensor(1.5), "k_proj.k_scale": torch.ones(1)},
              {"quant_method": "modelopt", "quant_algo": "FP8"}, {"a.weight": weight.float() * one})


def compressed(judge):
    import torch
    from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor as Compressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    kinds = (("float", 8, "tensor", True, (1,), {}), ("float", 8, "channel", True, (40, 1), {}),
             ("float", 8, "block", True, (2, 3), {"block_structure": [32, 32]}), ("int", 8, "channel", True, (40, 1), {}),
             ("int", 8, "channel", False, (40, 1), {}), ("int", 8, "group", False, (40, 3), {"group_size": 32}),
             ("int", 8, "group", True, (40, 6), {"group_size": 16}), ("float", 8, "group", True, (40, 24), {"group_size": 4}))
    for kind, bits, strategy, symmetric, shape, more in kinds:
        args = QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, symmetric=symmetric, **more)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        state = {"weight": random(40, 96), "weight_scale": torch.rand(*shape) * 1e-3 + 1e-4}
        if not symmetric:
            state["weight_zero_point"] = torch.randint(-20, 20, shape, dtype=torch.int8)
        packed = Compressor.compress(state, scheme)
        whole = Compressor.decompress(packed, scheme)["weight"]
        config = {"quant_method": "compressed-tensors", "format": f"{kind}-quantized", "config_groups": {"group_0": json.loads(scheme.model_dump_json())}}
        judge.row(f"compressed-tensors {kind} {strategy} {'' if symmetric else 'with zero points'}", {f"a.{k}": v for k, v in packed.items()},
                  config, {"a.weight": whole.float()})


def other_names(judge):
    """DeepSeek's programs for inference and ComfyUI, which no package has: their formulas, as inference/kernel.py and comfy/ops.py
    compute them. Activation order of compressed-tensors: scale[:, g_idx], as its version 0.10 computes it."""
    import torch
    weight, scale = float8(random(192, 300, seed=2), 1e-4), torch.rand(2, 3) + 0.1
    whole = weight.float() * scale.repeat_interleave(128, 0)[:192].repeat_interleave(128, 1)[:, :300]
    judge.row("DeepSeek's inference, M.scale", {"a.weight": weight, "a.scale": scale}, {"quant_method": "fp8"}, {"a.weight": whole})
    one = torch.tensor(0.0123)
    judge.row("ComfyUI, M.scale_weight", {"m.a.weight": weight, "m.a.scale_weight": one, "m.a.scale_input": torch.tensor(1.0),
                                          "m.scaled_fp8": torch.zeros(2).to(torch.float8_e4m3fn)}, {}, {"m.a.weight": weight.float() * one})
    group = torch.randperm(96, generator=torch.Generator().manual_seed(1)) // 32
    numbers, scales = torch.randint(-127, 128, (40, 96), dtype=torch.int8), torch.rand(40, 3)
    config = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {
        "group_0": {"weights": {"num_bits": 8, "strategy": "group", "group_size": 32, "actorder": "group"}}}}
    judge.row("compressed-tensors with activation order", {"a.weight": numbers, "a.weight_scale": scales, "a.weight_g_idx": group.int()},
              config, {"a.weight": numbers.float() * scales[:, group]})


def bitsandbytes(judge):
    """Rows are whole blocks: where they are not, bitsandbytes 0.50 gives other values on processors with AVX-512 than on all others. Of
    fp4's second zero it gives -0 on some processors, and on others the +0 of its table, which is what counts."""
    import bitsandbytes as bnb
    import torch
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            for dtype, storage, size in (("float32", "uint8", 64), ("bfloat16", "bfloat16", 64), ("float16", "float32", 128)):
                layer = bnb.nn.Linear4bit(128, 130, bias=False, quant_type=kind)
                weight = random(130, 128, seed=3).to(getattr(torch, dtype))
                layer.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type=kind, compress_statistics=nested, blocksize=size,
                                                 quant_storage=getattr(torch, storage), module=layer)
                layer = layer.to("cpu")
                whole = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state) + 0.0
                judge.row(f"bitsandbytes {kind}{' nested' if nested else ''}, {dtype} in {storage}, blocks of {size}",
                          {f"a.{k}": v for k, v in layer.state_dict().items()},
                          {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": storage}, {"a.weight": whole})
    weight, scb, _ = bnb.functional.int8_vectorwise_quant(random(40, 64).half())
    judge.row("bitsandbytes LLM.int8()", {"a.weight": weight, "a.SCB": scb, "a.weight_format": torch.tensor(0, dtype=torch.uint8)},
              {"quant_method": "bitsandbytes", "load_in_8bit": True}, {"a.weight": bnb.functional.int8_vectorwise_dequant(weight, scb)})


def torchao(judge):
    import torch
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, MappingType, PerGroup, quantize_
    four_bits = {"weight_dtype": torch.int4, "granularity": PerGroup(32)}
    for title, config in (("Int8WeightOnlyConfig", Int8WeightOnlyConfig()), ("Float8WeightOnlyConfig", Float8WeightOnlyConfig()),
                          ("IntxWeightOnlyConfig of 4 bits", IntxWeightOnlyConfig(**four_bits)),
                          ("IntxWeightOnlyConfig with zero points", IntxWeightOnlyConfig(**four_bits, mapping_type=MappingType.ASYMMETRIC))):
        for dtype in (torch.bfloat16, torch.float32):
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.LayerNorm(48)).to(dtype)
            model[0].weight.data += 0.05  # zero points are not all 0
            quantize_(model, config)
            state = {f"m.{k}": v for k, v in model.state_dict().items()}
            tensors, metadata = flatten_tensor_state_dict({k: v.detach() for k, v in state.items()})
            whole = {k: (v.dequantize() if type(v) is not torch.Tensor else v) for k, v in state.items()}
            judge.row(f"torchao {title}, {dtype}", tensors, {"quant_method": "torchao"}, whole, metadata)


def mxfp4(judge):
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    packed = torch.randint(0, 256, (2, 40, 3, 16), dtype=torch.uint8)
    scales = torch.randint(110, 135, (2, 40, 3), dtype=torch.uint8)
    judge.row("gpt-oss MXFP4", {"e.up_proj_blocks": packed, "e.up_proj_scales": scales, "e.up_proj_bias": random(2, 40)},
              {"quant_method": "mxfp4"}, {"e.up_proj": convert_moe_packed_tensors(packed, scales, dtype=torch.float32),
                                          "e.up_proj_bias": random(2, 40)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    args = parser.parse_args()
    truth.require("safetensors", "torch", "transformers")
    import torch
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        judge = Judge(args.build.resolve(), pathlib.Path(scratch))
        for case in (blocks, rows, compressed, other_names, bitsandbytes, torchao, mxfp4):
            try:
                case(judge)
            except ImportError as missing:
                print(f"{case.__name__:70} skipped: {missing}", flush=True)
    sys.exit(1 if judge.failed else 0)


if __name__ == "__main__":
    main()
