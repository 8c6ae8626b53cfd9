"""Tables as plain text and as Markdown."""

Table = list[list[str]]
"""The first row is the head."""


def aligned(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if _is_number(i, table) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def piped(table: Table) -> str:
    rules = ["---:" if _is_number(i, table) else "---" for i in range(len(table[0]))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [table[0], rules, *table[1:]])


def _is_number(column: int, table: Table) -> bool:
    return table[0][column] not in ("load", "rows", "what", "target", "contestant", "why", "")
