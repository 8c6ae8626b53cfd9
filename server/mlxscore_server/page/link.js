// The input of this page in its own address, behind the #: never sent to any server.

/** `{ text }`, `{ context, continuations }`, or null where the fragment holds neither. */
export function readLink(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  if (given.has("text")) return { text: given.get("text") };
  if (!given.has("context") && !given.has("continuation")) return null;
  return { context: given.get("context") ?? "", continuations: given.getAll("continuation") };
}

/** The fragment, from # on, that opens this input. */
export function linkTo(input) {
  const pairs =
    input.text === undefined
      ? [["context", input.context], ...input.continuations.map((one) => ["continuation", one])]
      : [["text", input.text]];
  // Half a surrogate pair has no place in an address.
  return `#${pairs.map(([name, value]) => `${name}=${encodeURIComponent(value.toWellFormed?.() ?? value)}`).join("&")}`;
}

const LONGEST = 8000;

/** Makes this page's address the link, as long as that is of a length that programs pass on. */
export function keepLink(input) {
  const link = linkTo(input);
  history.replaceState(null, "", link.length > LONGEST ? location.pathname : link);
}
