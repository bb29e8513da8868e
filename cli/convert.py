"""``dflash-mlx convert``: write a DFlash checkpoint in MLX format."""

import argparse
from pathlib import Path

from ..errors import UserError

# What mlx-lm's command has and this one has not.
_DEQUANTIZE = "is --export z-lab here, which writes a drafter unquantized."
_MLX_LM_FLAGS = {
    "-d": _DEQUANTIZE,
    "--dequantize": _DEQUANTIZE,
    "--q-mode": "is not there: -q quantizes as mlx-lm's affine mode does, the only one written.",
    "--quant-predicate": "is not there: -q quantizes every layer alike.",
    "--trust-remote-code": "is not needed: nothing from a drafter's checkpoint is executed.",
}


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``convert`` command."""
    parser = subparsers.add_parser(
        "convert",
        description=(
            "Convert a DFlash checkpoint (PyTorch safetensors, in any published layout) to an MLX "
            "drafter: config.json, model.safetensors and a model card. A drafter in MLX format is "
            "quantized or cast. With --export, the other way "
            "round: --mlx-path is the drafter to read, and --hf-path the folder to write."
        ),
    )
    parser.add_argument(
        "--hf-path",
        "--model",
        required=True,
        help="the checkpoint: a Hugging Face id such as z-lab/Qwen3-4B-DFlash-b16, or a folder; "
        "with --export, the folder to write, which must not exist, or be empty",
    )
    parser.add_argument(
        "--mlx-path",
        required=True,
        help="the folder to write; it must not exist, or be empty; with --export, the MLX drafter",
    )
    parser.add_argument(
        "-q",
        "--quantize",
        action="store_true",
        help="quantize the linear layers (default: keep them unquantized)",
    )
    parser.add_argument(
        "--q-bits",
        type=int,
        metavar="{2,3,4,5,6,8}",
        help="bits a weight, with -q (default: 4)",
    )
    parser.add_argument(
        "--q-group-size",
        type=int,
        metavar="{32,64,128}",
        help="weights that share one scale, with -q (default: 64)",
    )
    parser.add_argument(
        "--dtype",
        metavar="{float16,bfloat16,float32}",
        help="dtype of everything that is not quantized (default: the checkpoint's)",
    )
    parser.add_argument(
        "--revision", help="branch, tag or commit of a Hugging Face id (default: its main branch)"
    )
    parser.add_argument(
        "--block-size",
        type=int,
        metavar="N",
        help="the block_size of the checkpoint's config, if it has none",
    )
    parser.add_argument(
        "--mask-token-id",
        type=int,
        metavar="ID",
        help="the mask_token_id of the checkpoint's config, if it has none",
    )
    parser.add_argument(
        "--attention-factor",
        type=float,
        metavar="X",
        help="YaRN's amplitude (default: by the config and Hugging Face's rule)",
    )
    parser.add_argument(
        "--allow-final-tap",
        action="store_true",
        help="take a tap on the target's last layer as its output before the final norm",
    )
    parser.add_argument(
        "--export",
        choices=["z-lab"],
        help="read the MLX drafter of --mlx-path and write it to --hf-path as a checkpoint that "
        "the official PyTorch package loads, unquantized",
    )
    parser.add_argument(
        "--upload-repo",
        metavar="REPO",
        help="upload what was written to this Hugging Face id, when it is complete",
    )
    parser.set_defaults(run=run)
    parser.not_ours = _MLX_LM_FLAGS


def run(args: argparse.Namespace) -> int:
    """Convert or export, upload if asked to, and say where the drafter is.

    Raises:
        UserError: The options do not fit together, or a step fails.
    """
    if not args.quantize and (args.q_bits is not None or args.q_group_size is not None):
        raise UserError("--q-bits and --q-group-size need -q; add -q or drop them.")
    if args.export is not None:
        _check_export(args)
    # Imported here because it loads mlx-lm, which `--help` should not wait for.
    from ..convert.upload import check_upload, upload

    if args.upload_repo is not None:
        check_upload(args.upload_repo)
    folder = _convert(args) if args.export is None else _export(args)
    print(f"Wrote {folder}")
    if args.upload_repo is not None:
        print(f"Uploaded to {upload(folder, args.upload_repo)}")
    return 0


def _convert(args: argparse.Namespace) -> Path:
    from ..convert import convert

    return convert(
        args.hf_path,
        args.mlx_path,
        quantize=args.quantize,
        q_bits=4 if args.q_bits is None else args.q_bits,
        q_group_size=64 if args.q_group_size is None else args.q_group_size,
        dtype=args.dtype,
        revision=args.revision,
        block_size=args.block_size,
        mask_token_id=args.mask_token_id,
        attention_factor=args.attention_factor,
        allow_final_tap=args.allow_final_tap,
    )


def _export(args: argparse.Namespace) -> Path:
    from ..convert import export_drafter
    from ..convert.source import find_source
    from ..loading.loader import load_drafter

    swapped = not Path(args.mlx_path).exists() and (Path(args.hf_path) / "config.json").exists()
    source = None if swapped else find_source(args.mlx_path, args.revision)
    if source is None or not source.is_converted:
        raise UserError(
            f"{args.mlx_path} is not a drafter in MLX format. With --export, --mlx-path is the MLX "
            "drafter to read and --hf-path the folder to write."
        )
    source.fetch_weights()
    drafter = load_drafter(source.folder)
    return export_drafter(
        drafter, args.hf_path, dtype=args.dtype, source=source.config.get("source")
    )


def _check_export(args: argparse.Namespace) -> None:
    """Options about reading a checkpoint, or quantizing it, mean nothing on the way back."""
    given = {
        "-q": args.quantize,
        "--block-size": args.block_size is not None,
        "--mask-token-id": args.mask_token_id is not None,
        "--attention-factor": args.attention_factor is not None,
        "--allow-final-tap": args.allow_final_tap,
    }
    if wrong := [option for option, is_given in given.items() if is_given]:
        raise UserError(
            f"{' and '.join(wrong)} cannot be used with --export, which writes an MLX drafter as "
            "it is, unquantized; leave it out."
        )
