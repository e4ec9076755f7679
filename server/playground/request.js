// From what is set on the page to a request of the API. Knows names of fields, and no element but the form's.

const PATHS = { chat: "/v1/chat/completions", completions: "/v1/completions" };
const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "seed"];

/** What the form says. Fields that are left empty are left out, so that the server's own defaults hold. */
export function readForm(form) {
  const fields = form.elements;
  return {
    route: fields.route.value,
    key: fields.key.value.trim(),
    prompt: fields.prompt.value,
    system: fields.system.value,
    compares: fields.compare.checked,
    sampling: Object.fromEntries(NUMBERS.filter((name) => fields[name].value !== "").map((name) => [name, fields[name].valueAsNumber])),
    speculation: {
      mode: fields.mode.value,
      ...(fields.num_speculative_tokens.value !== "" && {
        num_speculative_tokens: fields.num_speculative_tokens.valueAsNumber,
      }),
    },
  };
}

/** Path and body of the request, behind the turns of an earlier conversation. */
export function makeRequest(settings, model, turns) {
  const asked = settings.route === "chat" ? { messages: messagesOf(settings, turns) } : { prompt: settings.prompt };
  const body = {
    model,
    ...asked,
    ...settings.sampling,
    speculation: settings.speculation,
    stream: true,
    stream_options: { include_usage: true },
    return_token_provenance: true,
  };
  return { path: PATHS[settings.route], body };
}

/** The same request with the same noise, decoded plainly. */
export function withoutSpeculation({ path, body }, seed) {
  return { path, body: { ...body, seed, speculation: { mode: "off" } } };
}

function messagesOf(settings, turns) {
  const opening = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  return [...opening, ...turns, { role: "user", content: settings.prompt }];
}
