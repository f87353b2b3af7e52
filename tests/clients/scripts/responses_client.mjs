// openai (JavaScript): /v1/responses and /v1/embeddings. Run in a folder that has its packages.
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: `${process.env.OCTAVO_URL}/v1`, apiKey: "none" });
const asked = { model: "smollm2-135m", temperature: 0, max_output_tokens: 60 };
const facts = "Anna lives in Rome, keeps two cats and works in a library. ".repeat(8);

// A conversation that the server keeps, and the same answer in events.
const first = await client.responses.create({ input: `${facts}Where does Anna live?`, ...asked });
const second = await client.responses.create({
  input: "And where does she work?",
  previous_response_id: first.id,
  ...asked,
});
let streamed = "";
for await (const event of await client.responses.create({
  input: `${facts}Where does Anna live?`,
  stream: true,
  ...asked,
}))
  if (event.type === "response.output_text.delta") streamed += event.delta;
const helped = await client.responses
  .stream({ input: `${facts}Where does Anna live?`, ...asked })
  .finalResponse();

// A call, its result, an answer.
const city = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 } },
  required: ["city"],
  additionalProperties: false,
};
const tools = {
  tools: [{ type: "function", name: "get_weather", parameters: city, strict: true }],
  parallel_tool_calls: false,
};
const called = await client.responses.create({
  input: "What is the weather in Paris?",
  tool_choice: "required",
  ...tools,
  ...asked,
});
const call = called.output.find((item) => item.type === "function_call");
const result = { type: "function_call_output", call_id: call.call_id, output: "22 degrees, sunny" };
const after = await client.responses.create({
  input: [result],
  previous_response_id: called.id,
  tool_choice: "none",
  ...tools,
  ...asked,
});

const Person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) });
const format = zodTextFormat(Person, "person");
const parsed = await client.responses.parse({
  input: "Anna is 31 years old and lives in Rome.",
  text: { format },
  ...asked,
});

const again = await client.responses.retrieve(first.id);
const items = await client.responses.inputItems.list(second.id, { order: "asc" });
await client.responses.delete(first.id);
const gone = await client.responses.retrieve(first.id).then(
  () => 200,
  (error) => error.status,
);

const texts = ["A cat sleeps on the sofa.", "Bond yields rose on Tuesday."];
const embedded = async (input, options = {}) =>
  (await client.embeddings.create({ model: asked.model, input, ...options })).data.map(
    (one) => one.embedding,
  );
const many = await embedded(texts);
const [floats] = await embedded(texts[0], { encoding_format: "float" });
const [short] = await embedded(texts[0], { dimensions: 64 });
console.log(
  JSON.stringify({
    text: first.output_text,
    streamed,
    helped: helped.output_text,
    tokens: first.usage.total_tokens,
    cached: second.usage.input_tokens_details.cached_tokens,
    call: [call.name, JSON.parse(call.arguments)],
    answered: after.output_text !== "",
    person: parsed.output_parsed,
    retrieved: again.output_text === first.output_text,
    items: items.data.map((item) => [item.role, item.content[0].text.slice(-23)]),
    gone,
    same: many[0].length === floats.length && many[0].every((value, index) => value === floats[index]),
    sizes: [many[0].length, short.length],
  }),
);
