// What cannot be seen, made visible; and what would turn the text around it, kept from doing so.
import { make } from "./dom.js";

const NAMED = new Map(
  Object.entries({
    "\u00a0": "⍽",
    "\u00ad": "SHY",
    "\u061c": "ALM",
    "\u200b": "ZWSP",
    "\u200e": "LRM",
    "\u200f": "RLM",
    "\u2028": "LS",
    "\u2029": "PS",
    "\u202a": "LRE",
    "\u202b": "RLE",
    "\u202c": "PDF",
    "\u202d": "LRO",
    "\u202e": "RLO",
    "\u2060": "WJ",
    "\u2066": "LRI",
    "\u2067": "RLI",
    "\u2068": "FSI",
    "\u2069": "PDI",
    "\ufeff": "BOM",
  }),
);
const UNSEEN = /[\0-\x1f\x7f-\xa0\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]/u;
const SPLIT = new RegExp(`(${UNSEEN.source}| +)`, "u");
const ONLY_JOINERS = /^[\u200c\u200d\ufe00-\ufe0f]+$/u;

/**
 * A text as elements and texts, with marks. `spaces`: whether each space gets one; else only those
 * that would be overlooked (several, or nothing else). `breaks`: whether a line break breaks the line.
 */
export function marked(text, { spaces = true, breaks = false } = {}) {
  if (ONLY_JOINERS.test(text)) return [mark(codes(text))];
  return text
    .split(SPLIT)
    .filter((part) => part !== "")
    .flatMap((part) => {
      if (part[0] === " ") {
        return spaces || part.length > 1 || part === text ? [mark("·".repeat(part.length), "space")] : [part];
      }
      if (part === "\n") return breaks ? [mark("↵"), "\n"] : [mark("↵")];
      return UNSEEN.test(part) ? [mark(nameOf(part))] : [part];
    });
}

/** A text in one line for names that screen readers say. */
export const spoken = (text) => (text.trim() === "" ? codes(text) : text.trim());

export const mark = (text, kind = "mark") => make("span", { class: kind }, text);

function nameOf(char) {
  const code = char.codePointAt(0);
  if (char === "\t") return "⇥";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  return NAMED.get(char) ?? codes(char);
}

const SAID = { " ": "space", "\n": "line break", "\t": "tab" };

function codes(text) {
  const each = [...text].map(
    (char) => SAID[char] ?? `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`,
  );
  const alike = each.every((one) => one === each[0]);
  return alike && each.length > 1 ? `${each.length} × ${each[0]}` : each.join(" ");
}
