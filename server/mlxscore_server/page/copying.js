// Buttons that copy.
import { byId, make, say } from "./dom.js";

/** `text()` gives what is copied. */
export function copyButton(name, text) {
  const button = make("button", { type: "button", class: "quiet" }, name);
  button.addEventListener("click", async () => {
    if (await copy(text())) {
      button.classList.add("done");
      setTimeout(() => button.classList.remove("done"), 1500);
      say("Copied");
    }
  });
  return button;
}

/** Whether it was copied; else it is shown, to be copied by hand. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No clipboard on plain http, except on the machine itself.
    const area = byId("copying-text");
    area.value = text;
    byId("copying").showModal();
    area.select();
    return false;
  }
}
