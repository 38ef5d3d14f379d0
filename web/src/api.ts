// Talks to the master: requests with the session's cookie, answers as types, streams line by line.
//
// The session is in a cookie that no script can read, this one included. Pages of tasks have another origin, and the
// master takes the cookie from its own alone.

export interface User {
  id: number;
  username: string;
  displayName: string;
  admin: boolean;
}

export interface Experiment {
  id: number;
  name: string;
  description: string;
  labels: string[];
  notes: string;
  config: unknown;
  originalConfig: string;
  archived: boolean;
  numTrials: number;
  projectName: string;
  workspaceName: string;
  searcherMetric: string;
  startTime: string;
  endTime: string | null;
  state: string;
  username: string;
  displayName: string;
  progress: number | null;
  checkpointSize: string;
  checkpointCount: number;
  externalExperimentId: string | null;
  bestTrialId: number | null;
  bestTrialSearcherMetric: number | null;
  /** Seconds from the start, which includes the time of waiting for slots. */
  duration: number;
  /** When the first of its trials got slots, or began elsewhere. */
  firstRunTime: string | null;
}

export interface Summary {
  type: string;
  last: unknown;
  min?: number | string;
  max?: number | string;
  count?: number;
}

export interface Trial {
  id: number;
  state: string;
  taskId: string;
  startTime: string;
  endTime: string | null;
  /** When it first got slots, or began elsewhere. */
  firstRunTime: string | null;
  /** Seconds for which it has had slots, or has run elsewhere. */
  wallClockTime: number;
  hparams: Record<string, unknown> | null;
  restarts: number;
  totalBatchesProcessed: number;
  summaryMetrics: Record<string, Record<string, Summary>>;
  searcherMetricValue: number | null;
}

/** What became of the time of a trial's ranks, over its allocations that have ended. */
export interface Goodput {
  allocations: number;
  ranks: number;
  seconds: Record<
    "start" | "compute" | "communication" | "data" | "checkpoint" | "restart" | "lost" | "idle" | "unobserved",
    number
  >;
  ettr: number | null;
  redoneSteps: number | null;
  takenBackSteps: number | null;
}

/** A device that an agent lends, with what runs on it. */
export interface Slot {
  id: string;
  device: { id: number; brand: string; uuid: string; type: string };
  enabled: boolean;
  draining: boolean;
  container: { id: string; parent: string; state: string } | null;
}

export interface Agent {
  id: string;
  registeredTime: string | null;
  slots: Record<string, Slot>;
  containers: Record<string, { id: string; parent: string; state: string }>;
  addresses: string[];
  enabled: boolean;
  draining: boolean;
  connected: boolean;
  instepVersion: string;
  resourcePools: string[];
}

export interface Pool {
  name: string;
  description: string;
  numAgents: number;
  slotsAvailable: number;
  slotsUsed: number;
  schedulerType: string;
}

export interface Job {
  jobId: string;
  entityId: string;
  type: string;
  submissionTime: string;
  username: string;
  resourcePool: string;
  name: string;
  priority: number | null;
  weight: number;
  requestedSlots: number;
  allocatedSlots: number;
  progress: number;
  summary: { state: string; jobsAhead: number } | null;
  /** Why it waits; empty if it does not. */
  reason: string;
}

export interface Checkpoint {
  uuid: string;
  state: string;
  reportTime: string;
  resources: Record<string, string>;
  metadata: Record<string, unknown>;
  training: { trialId: number | null; searcherMetric: number | null };
}

export interface Point {
  batches: number;
  time: string;
  values: Record<string, unknown>;
}

export interface Comparison {
  trials: { trial: { id: number; startTime: string }; metrics: { group: string; data: Point[] }[] }[];
}

export interface LogLine {
  id: string;
  timestamp: string;
  level: string;
  rankId: number | null;
  source: string | null;
  stdtype: string | null;
  log: string;
}

export interface Page {
  offset: number;
  limit: number;
  startIndex: number;
  endIndex: number;
  total: number;
}

/** A request that was refused, or that nobody answered (status 0). */
export class Failure extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Forgets what earlier versions kept where every page of this origin could read it. */
localStorage.removeItem("instep.token");

/** What a question may carry behind its question mark; lists are repeated, what is undefined is left out. */
export type Parameters = Record<string, string | number | boolean | undefined | (string | number)[]>;

function address(path: string, parameters: Parameters = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (Array.isArray(value)) for (const one of value) query.append(name, String(one));
    else if (value !== undefined && value !== "") query.append(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

async function ask(path: string, options: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Failure(0, "the master is not responding");
  }
  if (!response.ok) throw new Failure(response.status, await reason(response));
  return response;
}

async function reason(response: Response): Promise<string> {
  try {
    const body = (await response.json()) as { message?: string; error?: { error?: string } };
    return body.message ?? body.error?.error ?? response.statusText;
  } catch {
    return response.statusText;
  }
}

export async function get<T>(path: string, parameters?: Parameters, signal?: AbortSignal): Promise<T> {
  const response = await ask(address(path, parameters), { signal: signal ?? null });
  return (await response.json()) as T;
}

/** Hands over the elements of a streamed answer as they come, all that arrived together at once. */
export async function stream<T>(
  path: string,
  parameters: Parameters,
  signal: AbortSignal,
  take: (elements: T[]) => void,
): Promise<void> {
  const response = await ask(address(path, parameters), { signal });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    const elements: T[] = [];
    for (const line of lines) {
      if (!line) continue;
      const element = JSON.parse(line) as { result?: T; error?: { message: string } };
      if (element.error) throw new Failure(500, element.error.message);
      if (element.result !== undefined) elements.push(element.result);
    }
    if (elements.length) take(elements);
  }
}

export async function signIn(username: string, password: string): Promise<User> {
  const body = JSON.stringify({ username, password, isHashed: false });
  const response = await ask("/api/v1/auth/login?cookie=true", { method: "POST", body });
  return ((await response.json()) as { user: User }).user;
}

export async function signOut(): Promise<void> {
  await ask("/api/v1/auth/logout", { method: "POST" });
}

/** Whether the user may see anything: always without roles, otherwise if somebody has given them one. */
export async function hasRole(): Promise<boolean> {
  if (!(await get<{ rbacEnabled: boolean }>("/api/v1/master")).rbacEnabled) return true;
  return (await get<{ assignments: unknown[] }>("/api/v1/permissions/summary")).assignments.length > 0;
}

/**
 * Who is signed in. Without a valid session the default user, who has no password, is tried: the master allows that on
 * its own machine.
 */
export async function whoAmI(): Promise<User | null> {
  try {
    return (await get<{ user: User }>("/api/v1/me")).user;
  } catch (error) {
    if (!(error instanceof Failure) || error.status !== 401) throw error;
  }
  try {
    return await signIn("determined", "");
  } catch (error) {
    if (error instanceof Failure && error.status !== 0) return null;
    throw error;
  }
}
