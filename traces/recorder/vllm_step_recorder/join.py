"""`vllm-step-recorder-join FOLDER`: the files of one start as one `steps.parquet` and one `requests.parquet`."""

import argparse
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .writer import FACTS, write_whole

KINDS = {"steps": "wall_s", "requests": "arrival_s"}
"""Kind of file → column that orders its rows."""


def main(argv: list[str] | None = None) -> int:
    """Join the files and say what was joined; 2 where they do not belong together."""
    parser = argparse.ArgumentParser(prog="vllm-step-recorder-join", description=__doc__)
    parser.add_argument("folder", type=Path, help="with the recorder's files")
    parser.add_argument("--start", default="", help="only files of this start, as in their names (20260302T091500)")
    parser.add_argument("-o", "--output", type=Path, help="folder to write to (default: the same)")
    arguments = parser.parse_args(argv)
    output = arguments.output or arguments.folder
    for kind, order in KINDS.items():
        paths = sorted(arguments.folder.glob(f"{kind}-{arguments.start}*.parquet"))
        tables = [pq.read_table(path) for path in paths]
        if len({table.schema.metadata[FACTS] for table in tables}) > 1:
            starts = sorted({path.name.split("-")[1] for path in paths})
            print(
                f"{arguments.folder}: the files are of servers with different flags; name one start with --start: "
                + ", ".join(starts),
                file=sys.stderr,
            )
            return 2
        if tables:
            joined = pa.concat_tables(tables).sort_by(order)
            write_whole(joined.replace_schema_metadata(tables[-1].schema.metadata), output / f"{kind}.parquet")
        print(f"{kind}: {sum(table.num_rows for table in tables):,} rows of {len(paths):,} files", file=sys.stderr)
    return 0
