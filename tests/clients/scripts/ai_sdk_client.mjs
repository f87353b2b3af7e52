// AI SDK: generateObject, and a tool that must be called. Run in a folder that has its packages.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "octavo",
  baseURL: `${process.env.OCTAVO_URL}/v1`,
  apiKey: "none",
  supportsStructuredOutputs: true,
});
const model = provider("smollm2-135m");
const Person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) });
const { object } = await generateObject({
  model,
  schema: Person,
  prompt: "Anna is 31 years old and lives in Rome.",
  temperature: 0,
  maxOutputTokens: 200,
});
const { toolCalls } = await generateText({
  model,
  tools: { get_weather: tool({ description: "The weather in a city", inputSchema: z.object({ city: z.string().max(20) }) }) },
  toolChoice: "required",
  prompt: "What is the weather in Paris?",
  temperature: 0,
  maxOutputTokens: 200,
});
console.log(JSON.stringify({ person: object, calls: toolCalls.map((call) => [call.toolName, call.input]) }));
