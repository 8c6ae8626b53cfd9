// Lines of JSON: into items, and out of results.

/** What stands in a text, line by line: `{ line, item }` or `{ line, error }`; blank lines are left out. */
export function itemsOf(text) {
  return text
    .split(/\r\n|\n|\r/)
    .map((source, index) => ({ line: index + 1, source }))
    .filter(({ source }) => source.trim() !== "")
    .map(({ line, source }) => ({ line, ...parsed(source) }));
}

function parsed(source) {
  try {
    const item = JSON.parse(source);
    if (item !== null && typeof item === "object" && !Array.isArray(item)) return { item, size: source.length };
    return { error: { message: "must be a JSON object", code: "invalid_json", param: null } };
  } catch (error) {
    return { error: { message: `is not JSON: ${error.message}`, code: "invalid_json", param: null } };
  }
}

/** One line for each entry, as `mlxscore score` writes them: `index`, `id`, and `scores` or `error`. */
export const linesOf = (entries) =>
  entries
    .map(({ item, result, error }, index) => {
      const id = item && "id" in item ? { id: item.id } : {};
      return JSON.stringify({ index, ...id, ...(result ? { scores: result.scores } : { error }) });
    })
    .map((line) => `${line}\n`)
    .join("");
