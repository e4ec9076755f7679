// Server-sent events as the API sends them: JSON after JSON, and [DONE]. Knows the transport, and nothing of what is sent.

const END = "[DONE]";

/** The JSON of every event of a response body, up to the one that ends it. */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection ended before the answer did.");
    const events = (held + value).split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = dataOf(event);
      if (data === END) return;
      if (data) yield JSON.parse(data);
    }
  }
}

/** What an event says; comments and other fields say nothing. */
function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice("data:".length).trimStart()).join("\n");
}
