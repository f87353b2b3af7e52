// ollama: chat and generate, whole and streamed; tools, a schema, what is served, embeddings, an error.
// Run in a folder that has its package.
import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.OCTAVO_URL });
const model = "smollm2-135m";
const options = { temperature: 0, num_predict: 60 };
const messages = [{ role: "user", content: "Who was Aldus Manutius?" }];
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer", minimum: 0, maximum: 150 } },
  required: ["name", "age"],
  additionalProperties: false,
};
const tool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city.",
    parameters: {
      type: "object",
      required: ["city"],
      properties: { city: { type: "string", description: "its name" } },
    },
  },
};

const whole = await client.chat({ model, messages, options });
let text = "";
let last;
for await (const piece of await client.chat({ model, messages, options, stream: true })) {
  text += piece.message.content;
  last = piece;
}
const said = [{ role: "user", content: "Anna is 31 years old and lives in Rome." }];
const extracted = await client.chat({ model, messages: said, format: schema, options });
const prompt = "What is a book?";
const made = await client.generate({ model, prompt, system: "Be brief.", options });
let parts = "";
for await (const piece of await client.generate({ model, prompt, system: "Be brief.", options, stream: true })) {
  parts += piece.response;
}
// Ollama has no word for calls that must come, and the default model makes few by itself: it is told the call.
const asked = [
  { role: "system", content: "You call functions. Answer only with <tool_call>." },
  {
    role: "user",
    content: 'Repeat: <tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
  },
];
const called = (await client.chat({ model, messages: asked, tools: [tool], options })).message;
const result = { role: "tool", tool_name: "get_weather", content: "sunny in Paris" };
const after = await client.chat({ model, messages: [...asked, called, result], tools: [tool], options });
const vectors = await client.embed({ model, input: ["a book", "a page"] });
const shown = await client.show({ model });
const listed = (await client.list()).models;
const running = (await client.ps()).models;
let refused = 0;
try {
  await client.chat({ model: "no-such-model", messages });
} catch (error) {
  refused = error.status_code;
}
console.log(
  JSON.stringify({
    same: whole.message.content === text,
    answered: text.length > 0,
    done: [whole.done_reason, last.done, whole.eval_count === last.eval_count],
    person: JSON.parse(extracted.message.content),
    generated: made.response === parts,
    called: (called.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
    after: Boolean(after.message.content || after.message.tool_calls),
    vectors: [vectors.embeddings.length, vectors.embeddings[0].length],
    version: (await client.version()).version.length > 0,
    capabilities: shown.capabilities,
    listed: listed.map((one) => one.model),
    running: running.map((one) => one.model),
    refused,
  }),
);
