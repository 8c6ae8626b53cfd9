// Elements. Text goes in as text, never as HTML: the policy that this page is served with forbids the rest.

/** An element with attributes (null and false: left out) and children (elements or texts). */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Lets the browser paint and take input. */
export const nextFrame = () => new Promise((go) => setTimeout(go));

/** For screen readers: something has happened elsewhere on the page. */
export function say(text) {
  byId("said").textContent = text;
}
