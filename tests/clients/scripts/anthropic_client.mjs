// @anthropic-ai/sdk: whole and streamed answers, a tool that must be called and its result, structured output,
// counted tokens, models, errors. Run in a folder that has its packages.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.OCTAVO_URL, apiKey: "none", maxRetries: 0 });
const asked = { model: "smollm2-135m", max_tokens: 200, temperature: 0 };
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const city = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ name: "get_weather", description: "The weather in a city", strict: true, input_schema: city }];
const must = { tools, tool_choice: { type: "any", disable_parallel_tool_use: true } };

const whole = await client.messages.create({ ...asked, messages });
const stream = client.messages.stream({ ...asked, messages });
let pieces = "";
stream.on("text", (text) => (pieces += text));
const final = await stream.finalMessage();

const called = await client.messages.create({ ...asked, ...must, messages });
const streamed = await client.messages.stream({ ...asked, ...must, messages }).finalMessage();
const call = called.content[0];
const results = [{ type: "tool_result", tool_use_id: call.id, content: "22 degrees, sunny" }];
const history = [...messages, { role: "assistant", content: called.content }, { role: "user", content: results }];
const after = await client.messages.create({ ...asked, tools, tool_choice: { type: "none" }, messages: history });
const counted = await client.messages.countTokens({ model: asked.model, tools, messages: history });

const schema = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 20 },
    age: { type: "integer", minimum: 0, maximum: 150 },
  },
  required: ["name", "age"],
  additionalProperties: false,
};
const person = await client.messages.create({
  ...asked,
  messages: [{ role: "user", content: "Anna is 31 years old and lives in Rome." }],
  output_config: { format: { type: "json_schema", schema } },
});
const models = [];
for await (const model of client.models.list()) models.push(model.id);
let error = [];
try {
  await client.messages.create({ ...asked, model: "gpt-17", messages });
} catch (thrown) {
  error = [thrown instanceof Anthropic.NotFoundError, thrown.status, thrown.error.error.type];
}
const tokensIn = (message) => message.usage.input_tokens + message.usage.cache_read_input_tokens;
console.log(
  JSON.stringify({
    text: [whole.content[0].text, pieces, final.content[0].text],
    stops: [whole.stop_reason, final.stop_reason, called.stop_reason, streamed.stop_reason],
    call: [call.name, call.input],
    streamed: [streamed.content[0].name, streamed.content[0].input],
    answered: after.content.map((block) => block.type),
    counted: counted.input_tokens === tokensIn(after),
    person: JSON.parse(person.content[0].text),
    models,
    error,
  }),
);
