// The API key: asked for when the server wants one, kept for this tab only.
import { byId } from "./dom.js";

const STORED = "mlxscore-api-key";
const waiting = new Set();
const form = byId("key");
const input = byId("key-input");

/** Headers that show the key, if there is one. */
export function keyHeaders() {
  const key = sessionStorage.getItem(STORED);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export const hasKey = () => sessionStorage.getItem(STORED) !== null;

/** Shows the field with what the server said; resolves once somebody has given a key. */
export function askForKey(said, signal) {
  byId("key-said").textContent = said;
  sessionStorage.removeItem(STORED);
  const shown = form.hidden;
  form.hidden = false;
  if (shown) input.focus();
  return new Promise((given, refuse) => {
    const one = { given, refuse };
    waiting.add(one);
    signal?.addEventListener("abort", () => {
      waiting.delete(one);
      refuse(signal.reason);
    });
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const key = input.value.trim();
  // What no header can hold is no key.
  if (!/^[\x21-\x7e]+$/.test(key)) {
    byId("key-said").textContent = "A key has letters, digits and ASCII signs, no spaces.";
    return;
  }
  sessionStorage.setItem(STORED, key);
  input.value = "";
  form.hidden = true;
  for (const one of waiting) one.given();
  waiting.clear();
});
