// The fields of continuations: as many as one likes. The space that most of them need is pointed out.
import { byId, make } from "./dom.js";
import { clearFaults } from "./fault.js";

const list = byId("compare-continuations");
const context = byId("compare-context");
let made = 0;

export const continuationFields = () => [...list.querySelectorAll("textarea")];

export function setContinuations(texts) {
  list.replaceChildren();
  for (const text of texts) addContinuation(text);
}

/** The field of a new one. */
export function addContinuation(text, after = null) {
  made += 1;
  const field = make("textarea", { id: `continuation-${made}`, rows: "1", dir: "auto", spellcheck: "false" });
  field.value = text;
  const remove = make("button", { type: "button", class: "quiet", title: "Remove" }, "×");
  const hint = make("button", { type: "button", class: "link hint", hidden: true }, "no space before it: put one");
  const row = make("li", {}, field, remove, hint);
  if (after === null) list.append(row);
  else after.after(row);

  field.addEventListener("input", renew);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.ctrlKey || event.metaKey || event.isComposing) return;
    event.preventDefault();
    addContinuation("", row).focus();
  });
  remove.addEventListener("click", () => {
    clearFaults(row);
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    if (next === null) addContinuation("");
    (next ?? list).querySelector("textarea").focus();
    renew();
  });
  hint.addEventListener("click", () => {
    field.value = ` ${field.value}`;
    renew();
    field.focus();
  });
  renew();
  return field;
}

/** Names by place; and which of them go on with a word of the context. */
function renew() {
  const joined = /[\p{L}\p{N}]$/u.test(context.value);
  for (const [index, row] of [...list.children].entries()) {
    const field = row.querySelector("textarea");
    field.setAttribute("aria-label", `Continuation ${index + 1}`);
    row.querySelector("[title=Remove]").setAttribute("aria-label", `Remove continuation ${index + 1}`);
    row.querySelector(".hint").hidden = !(joined && /^[\p{L}\p{N}]/u.test(field.value));
  }
}

context.addEventListener("input", renew);
