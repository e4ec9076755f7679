// What a program with OpenAI's library for Node does. Prints one JSON object; usage: node client.mjs BASE_URL MODEL

import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const prompt = "one two three one two three one two";
const messages = [{ role: "user", content: "Count to ten." }];
const settings = { model, temperature: 0, max_tokens: 12 };

const completion = await client.completions.create({ ...settings, prompt });
let completionStream = "";
for await (const chunk of await client.completions.create({ ...settings, prompt, stream: true })) {
  completionStream += chunk.choices[0]?.text ?? "";
}

const chat = await client.chat.completions.create({ ...settings, messages });
let chatStream = "";
let usage = null;
const stream = await client.chat.completions.create({
  ...settings,
  messages,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  chatStream += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}

const { response } = await client.chat.completions.create({ ...settings, messages }).withResponse();
const refusals = [];
for (const wrong of [{ ...settings, prompt, n: 0 }, { ...settings, prompt, model: "other" }]) {
  try {
    await client.completions.create(wrong);
  } catch (error) {
    refusals.push({ name: error.constructor.name, status: error.status, param: error.param, code: error.code });
  }
}
const models = [];
for await (const listed of client.models.list()) models.push(listed.id);

console.log(
  JSON.stringify({
    completion: completion.choices[0].text,
    completionStream,
    chat: chat.choices[0].message.content,
    chatStream,
    chatUsage: chat.usage,
    streamUsage: usage,
    requestId: response.headers.get("x-request-id"),
    refusals,
    models,
  }),
);
