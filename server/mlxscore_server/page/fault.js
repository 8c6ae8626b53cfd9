// Errors, shown where they arose.
import { make } from "./dom.js";

/** Shows an error below the field that caused it. */
export function showFault(field, error) {
  const id = `${field.id}-fault`;
  const said = make("p", { class: "fault", role: "alert", id }, ...saidBy(error));
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", id);
  field.after(said);
}

/** The message, and the name of the field where that is not in it. */
export function saidBy({ message, param }) {
  return param && !message.includes(param) ? [message, " ", make("code", {}, param)] : [message];
}

/** Takes away all that a form shows. */
export function clearFaults(form) {
  for (const said of form.querySelectorAll(".fault")) said.remove();
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
}
