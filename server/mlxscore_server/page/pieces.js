// Tokens as something to read, though a token may be a part of a character only.

const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * What each token shows: a list of `{ text }`; `{ tail }`, of the character `tail` that an earlier
 * token shows; and `{ byte }`, in hexadecimal, which is of no character at all.
 *
 * A character is shown where its first byte lies. `whole` is what a token is a part of, else null.
 */
export function pieces(tokens) {
  const shown = tokens.map(() => ({ parts: [], whole: null }));
  for (let at = 0; at < tokens.length; ) {
    if (!tokens[at].text.includes("\ufffd")) {
      shown[at].parts.push({ text: tokens[at].text });
      at += 1;
      continue;
    }
    let end = at;
    while (end < tokens.length && tokens[end].text.includes("\ufffd")) end += 1;
    spread(tokens, shown, at, end);
    at = end;
  }
  return shown;
}

/** The characters of a run of tokens none of which is text by itself. */
function spread(tokens, shown, from, to) {
  const bytes = [];
  const owners = [];
  for (let i = from; i < to; i += 1) {
    for (const byte of tokens[i].bytes) {
      bytes.push(byte);
      owners.push(i);
    }
  }
  for (let at = 0; at < bytes.length; ) {
    const length = lengthOf(bytes[at]);
    const char = decode(bytes, at, length);
    if (char === null) {
      shown[owners[at]].parts.push({ byte: hex(bytes[at]) });
      at += 1;
      continue;
    }
    addText(shown[owners[at]].parts, char);
    for (let i = at + 1; i < at + length; i += 1) {
      if (owners[i] === owners[i - 1]) continue;
      shown[owners[i]].parts.push({ tail: char });
      shown[owners[i]].whole = shown[owners[at]].whole = char;
    }
    at += length;
  }
}

function addText(parts, text) {
  const last = parts.at(-1);
  if (last?.text !== undefined) last.text += text;
  else parts.push({ text });
}

/** Bytes of the UTF-8 character that this byte begins; 0 where none begins with it. */
function lengthOf(byte) {
  if (byte < 0x80) return 1;
  if (byte >= 0xc2 && byte < 0xe0) return 2;
  if (byte >= 0xe0 && byte < 0xf0) return 3;
  return byte >= 0xf0 && byte < 0xf5 ? 4 : 0;
}

function decode(bytes, at, length) {
  if (length === 0 || at + length > bytes.length) return null;
  try {
    return STRICT.decode(Uint8Array.from(bytes.slice(at, at + length)));
  } catch {
    return null;
  }
}

export const hex = (byte) => byte.toString(16).toUpperCase().padStart(2, "0");
