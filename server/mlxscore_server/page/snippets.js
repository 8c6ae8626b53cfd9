// The same request from elsewhere: as a command, as Python with this project's client.
import { address } from "./api.js";
import { hasKey } from "./key.js";

// What a shell or a reader of the command could take for something else, as JSON may write it.
const RISKY = /['!\x7f-\xa0\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const LONGEST_ARGUMENT = 100_000;

const literal = (value) =>
  JSON.stringify(value).replace(RISKY, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** `body`: of `POST /score`. */
export function curl(body) {
  const key = hasKey() ? ` -H "Authorization: Bearer $MLXSCORE_API_KEY"` : "";
  const start = `curl -s '${address("score")}' -H 'Content-Type: application/json'${key}`;
  const json = literal(body);
  return json.length > LONGEST_ARGUMENT
    ? `${start} --data-binary @- <<'END'\n${json}\nEND\n`
    : `${start} -d '${json}'\n`;
}

/** `lines`: what is done with `client`. */
export function python(...lines) {
  const url = address("").replace(/\/$/, "");
  const key = hasKey() ? "  # reads MLXSCORE_API_KEY" : "";
  return [
    ...(lines.some((line) => line.includes("json.")) ? ["import json", ""] : []),
    "from mlxscore_client import Client",
    "",
    `with Client(${literal(url)}) as client:${key}`,
    ...lines.map((line) => `    ${line}`),
    "",
  ].join("\n");
}

// A JSON string is a Python string too.
export { literal };
