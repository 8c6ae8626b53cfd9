// The server's own description of itself. No validator: that would be a request to somebody else.
window.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null,
  displayRequestDuration: true,
});
