"""``dflash-mlx convert``: write a DFlash checkpoint in MLX format."""

import argparse

from ..errors import UserError


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``convert`` command."""
    parser = subparsers.add_parser(
        "convert",
        description=(
            "Convert a DFlash checkpoint (PyTorch safetensors, in any published layout) to an MLX "
            "drafter: config.json, model.safetensors and a model card."
        ),
    )
    parser.add_argument(
        "--hf-path",
        required=True,
        help="the checkpoint: a Hugging Face id such as z-lab/Qwen3-4B-DFlash-b16, or a folder",
    )
    parser.add_argument(
        "--mlx-path", required=True, help="the folder to write; it must not exist, or be empty"
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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Convert, and say where the drafter is.

    Raises:
        UserError: The options do not fit together, or the conversion fails.
    """
    if not args.quantize and (args.q_bits is not None or args.q_group_size is not None):
        raise UserError("--q-bits and --q-group-size need -q; add -q or drop them.")
    # Imported here because it loads mlx-lm, which `--help` should not wait for.
    from ..convert import convert

    folder = convert(
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
    print(f"Wrote {folder}")
    return 0
