// One run at a time of a form: its buttons, its keys, what it shows meanwhile and when it fails.
import { make, say } from "./dom.js";
import { clearFaults, showFault } from "./fault.js";

/**
 * Makes a form run `work(signal)` when it is sent; returns a function that does the same.
 *
 * `fieldOf(param)`: the field that an error belongs to.
 */
export function runs(form, { name, work, fieldOf }) {
  const start = make("button", { type: "submit", class: "primary" }, name);
  const stop = make("button", { type: "button", class: "quiet", hidden: true }, "Stop");
  const result = form.parentElement.querySelector(".result");
  form.querySelector(".actions").prepend(start, stop);
  let current = null;

  const run = async () => {
    current?.abort();
    const mine = (current = new AbortController());
    clearFaults(form);
    form.classList.add("busy");
    result.setAttribute("aria-busy", "true");
    stop.hidden = false;
    try {
      await work(mine.signal, result);
    } catch (error) {
      if (!mine.signal.aborted) showFault(fieldOf(error.param ?? ""), error);
    } finally {
      if (current === mine) {
        current = null;
        form.classList.remove("busy");
        result.removeAttribute("aria-busy");
        stop.hidden = true;
      }
    }
  };

  stop.addEventListener("click", () => {
    current?.abort();
    say("Stopped");
    start.focus();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  });
  return run;
}
