// A text as its tokens, each coloured by how surprising it was. One token is selected, by pointer or keys.
import { make, nextFrame } from "./dom.js";
import { mark, marked, spoken } from "./marks.js";
import { bits, fixed } from "./numbers.js";
import { pieces } from "./pieces.js";
import { stepOf } from "./scale.js";

/** Tokens that are put on the page at once; then the browser may do something else. */
const AT_ONCE = 1000;

/** The element; `onSelect(token, piece)` is told what is selected. */
export async function heat(tokens, { label, onSelect, signal, select = true }) {
  const list = make("div", {
    class: "heat",
    role: "listbox",
    "aria-label": label,
    "aria-orientation": "horizontal",
    dir: "auto",
  });
  const shown = pieces(tokens);
  const options = [];
  let block = make("div");
  list.append(block);
  for (const [index, token] of tokens.entries()) {
    const option = optionOf(token, shown[index]);
    options.push(option);
    block.append(option);
    // A block ends with a line: what is out of sight is then not laid out.
    if (block.childElementCount > 200 && token.text.endsWith("\n")) {
      block = make("div");
      list.append(block);
    }
    if (index % AT_ONCE === AT_ONCE - 1) {
      await nextFrame();
      signal?.throwIfAborted();
    }
  }
  rove(list, options, (index) => onSelect(tokens[index], shown[index]), select ? mostSurprising(tokens) : null);
  return list;
}

function optionOf(token, piece) {
  return make(
    "span",
    {
      role: "option",
      class: `token ${stepOf(token.logprob)}`,
      tabindex: "-1",
      "aria-label": `${named(token, piece)}: ${fixed(bits(token.logprob), 1)} bits, rank ${token.rank}`,
      "aria-selected": "false",
      "data-id": token.id,
      "data-logprob": token.logprob,
    },
    ...piece.parts.flatMap((part) => partOf(part)),
  );
}

function partOf(part) {
  if (part.text !== undefined) return marked(part.text, { spaces: false, breaks: true });
  return [part.byte === undefined ? mark("◦", "tail") : mark(part.byte, "byte")];
}

function named(token, piece) {
  return piece.whole === null ? spoken(token.text) : `part of ${piece.whole}`;
}

const mostSurprising = (tokens) =>
  tokens.reduce((best, token, index) => (token.logprob < tokens[best].logprob ? index : best), 0);

/** One tab stop for all of them; the arrow keys go on from there. */
function rove(list, options, onSelect, first) {
  const indexOf = new Map(options.map((option, index) => [option, index]));
  let selected = 0;
  const select = (index, { focus = false } = {}) => {
    options[selected].tabIndex = -1;
    options[selected].setAttribute("aria-selected", "false");
    selected = index;
    options[selected].tabIndex = 0;
    options[selected].setAttribute("aria-selected", "true");
    if (focus) options[selected].focus();
    onSelect(selected);
  };
  const isOn = (index) => options[index].getAttribute("aria-selected") === "true";
  const under = (event) => indexOf.get(event.target.closest?.("[role=option]"));
  let at = "";
  list.addEventListener("pointermove", (event) => {
    // A finger that scrolls passes over many; text that scrolls passes under a pointer that rests.
    const before = at;
    at = `${event.screenX} ${event.screenY}`;
    if (event.pointerType === "touch" || at === before) return;
    const index = under(event);
    if (index !== undefined && !isOn(index)) select(index);
  });
  list.addEventListener("click", (event) => {
    const index = under(event);
    if (index !== undefined) select(index, { focus: true });
  });
  list.addEventListener("focusin", (event) => {
    const index = under(event);
    if (index !== undefined && !isOn(index)) select(index);
  });
  list.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const index = target(event.key, selected, options);
    if (index === undefined) return;
    event.preventDefault();
    select(index, { focus: true });
  });
  if (options.length === 0) return;
  if (first === null) options[0].tabIndex = 0;
  else select(first);
}

function target(key, from, options) {
  const last = options.length - 1;
  if (key === "ArrowRight") return Math.min(from + 1, last);
  if (key === "ArrowLeft") return Math.max(from - 1, 0);
  if (key === "Home") return 0;
  if (key === "End") return last;
  if (key === "ArrowDown") return lineAway(options, from, 1);
  return key === "ArrowUp" ? lineAway(options, from, -1) : undefined;
}

/** The token nearest to straight above or below, in the line next to this one. */
function lineAway(options, from, step) {
  const place = (option) => {
    const box = option.getClientRects()[0] ?? option.getBoundingClientRect();
    return { x: box.left + box.width / 2, y: box.top };
  };
  const start = place(options[from]);
  let best = from;
  let line = null;
  let nearest = Infinity;
  for (let i = from + step; i >= 0 && i < options.length; i += step) {
    const { x, y } = place(options[i]);
    if (Math.abs(y - start.y) < 4) continue;
    line ??= y;
    if (Math.abs(y - line) >= 4) break;
    if (Math.abs(x - start.x) < nearest) {
      nearest = Math.abs(x - start.x);
      best = i;
    }
  }
  return best;
}
