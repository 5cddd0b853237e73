package punctual

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Stats counts the tasks of a namespace by state.
type Stats struct {
	Namespace       string     `json:"namespace"`
	Accepted        int64      `json:"accepted"`
	Scheduled       int64      `json:"scheduled"`
	Firing          int64      `json:"firing"`
	Paused          int64      `json:"paused"`
	Done            int64      `json:"done"`
	Dead            int64      `json:"dead"`
	Cancelled       int64      `json:"cancelled"`
	DeadLetters     int64      `json:"dead_letters"`
	Queued          int64      `json:"queued"`
	ParkedLanes     int64      `json:"parked_lanes"`
	OldestOverdue   *time.Time `json:"oldest_overdue,omitempty"`
	OldestOverdueMS int64      `json:"oldest_overdue_ms"`
}

// Stats counts the tasks of the namespace.
func (c *Client) Stats(ctx context.Context) (*Stats, error) {
	return decode[Stats](ctx, c, get(c.path("stats"), nil))
}

// ForecastQuery is a span of time and its steps. Zero values are the defaults of the broker.
type ForecastQuery struct {
	For, Step time.Duration
	// At is when the first step begins; now if it is zero.
	At time.Time
	// ByTarget also counts the fires of each target, for which tasks are read.
	ByTarget bool
}

// Forecast has the fires that are expected in each step.
type Forecast struct {
	From          time.Time      `json:"from"`
	Step          Duration       `json:"step"`
	Complete      bool           `json:"complete"`
	CompleteUntil *time.Time     `json:"complete_until,omitempty"`
	Steps         []ForecastStep `json:"steps"`
	// Targets are those with most fires, if they were asked for.
	Targets []TargetFires `json:"targets,omitempty"`
}

// TargetFires has the expected fires of one target, by step.
type TargetFires struct {
	Target string  `json:"target"`
	Fires  []int64 `json:"fires"`
}

// ForecastStep is one step of a forecast.
type ForecastStep struct {
	From  time.Time `json:"from"`
	Fires int64     `json:"fires"`
}

// Forecast counts the fires that are expected.
func (c *Client) Forecast(ctx context.Context, span ForecastQuery) (*Forecast, error) {
	query := spanQuery(span.For, span.Step)
	if !span.At.IsZero() {
		query.Set("at", instantText(span.At))
	}
	if span.ByTarget {
		query.Set("by", "target")
	}
	return decode[Forecast](ctx, c, get(c.path("forecast"), query))
}

// SeriesQuery is how far back to count, up to 24 hours, and the step: 1m, 5m, 15m or 1h. Zero
// values are the defaults of the broker.
type SeriesQuery struct {
	For, Step time.Duration
}

// Series counts what ended in each step. Since is nil if nothing is kept.
type Series struct {
	From        time.Time     `json:"from"`
	Step        Duration      `json:"step"`
	Since       *time.Time    `json:"since,omitempty"`
	LagBoundsMS []int64       `json:"lag_bounds_ms"`
	Points      []SeriesPoint `json:"points"`
}

// SeriesPoint is one step of a series.
type SeriesPoint struct {
	At     time.Time `json:"at"`
	Done   int64     `json:"done"`
	Failed int64     `json:"failed"`
	Dead   int64     `json:"dead"`
	Lag    []int64   `json:"lag"`
	LagMS  *Lag      `json:"lag_ms,omitempty"`
}

// Lag has percentiles of lag in milliseconds.
type Lag struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// Series counts what ended in the last hours.
func (c *Client) Series(ctx context.Context, span SeriesQuery) (*Series, error) {
	return decode[Series](ctx, c, get(c.path("series"), spanQuery(span.For, span.Step)))
}

func spanQuery(length, step time.Duration) url.Values {
	query := url.Values{}
	if length != 0 {
		query.Set("for", Duration(length).String())
	}
	if step != 0 {
		query.Set("step", Duration(step).String())
	}
	return query
}

// PreviewQuery says how a cron expression is previewed. Zero values are the defaults of the broker.
type PreviewQuery struct {
	Timezone string
	Count    int
	// From is the time after which fires are shown; now if it is zero.
	From time.Time
	DST  DST
}

// Preview has the next fires of a cron expression.
type Preview struct {
	Cron         string     `json:"cron"`
	Timezone     string     `json:"timezone"`
	TimezoneData string     `json:"timezone_data"`
	Fires        []Upcoming `json:"fires"`
}

// Upcoming is a fire to come. Note says why a clock change has moved it.
type Upcoming struct {
	FireAt time.Time `json:"fire_at"`
	Local  string    `json:"local"`
	Note   string    `json:"note,omitempty"`
}

// Preview shows the next fires of a cron expression.
func (c *Client) Preview(ctx context.Context, cron string, options PreviewQuery) (*Preview, error) {
	query := url.Values{"cron": {cron}}
	set := func(name, value string) {
		if value != "" {
			query.Set(name, value)
		}
	}
	set("timezone", options.Timezone)
	set("dst_gap", options.DST.Gap)
	set("dst_overlap", options.DST.Overlap)
	if options.Count != 0 {
		query.Set("count", strconv.Itoa(options.Count))
	}
	if !options.From.IsZero() {
		query.Set("from", instantText(options.From))
	}
	return decode[Preview](ctx, c, get("/v1/preview", query))
}

// Explanation says what a task waits for, or how it ended.
type Explanation struct {
	Summary string `json:"summary"`
	// WaitingFor is time, retry, worker, capacity, limit, pause, owner or nothing.
	WaitingFor string       `json:"waiting_for"`
	Details    []string     `json:"details"`
	Task       Task         `json:"task"`
	Partition  int          `json:"partition"`
	Owner      string       `json:"owner,omitempty"`
	Epoch      int64        `json:"epoch,omitempty"`
	Touches    *int64       `json:"touches,omitempty"`
	TouchedAt  *time.Time   `json:"touched_at,omitempty"`
	Next       []NextFire   `json:"next"`
	Fires      []FireRecord `json:"fires"`
}

// NextFire is a fire to come of a task, and why it is at that time.
type NextFire struct {
	FireAt time.Time `json:"fire_at"`
	Local  string    `json:"local"`
	Why    string    `json:"why,omitempty"`
}

// Explain says in one sentence what a task waits for, with the facts.
func (c *Client) Explain(ctx context.Context, keyOrID string) (*Explanation, error) {
	path, err := c.taskPath(keyOrID, "explain")
	if err != nil {
		return nil, err
	}
	return decode[Explanation](ctx, c, get(path, nil))
}

// QueueInfo says what waits in a queue. More says that Waiting is a lower bound.
type QueueInfo struct {
	Name            string `json:"name"`
	Waiting         int64  `json:"waiting"`
	More            bool   `json:"more"`
	InFlight        int64  `json:"in_flight"`
	Workers         int64  `json:"workers"`
	OldestOverdueMS int64  `json:"oldest_overdue_ms"`
}

// queueList is the answer of a call.
type queueList struct {
	Queues []QueueInfo `json:"queues"`
}

// Queues lists the queues of the namespace.
func (c *Client) Queues(ctx context.Context) ([]QueueInfo, error) {
	got, err := decode[queueList](ctx, c, get(c.path("queues"), nil))
	if err != nil {
		return nil, err
	}
	return got.Queues, nil
}

// LaneList has the lanes of a namespace. If it is not Complete, there are more, with fewer waiting tasks.
type LaneList struct {
	Lanes    []LaneInfo `json:"lanes"`
	Complete bool       `json:"complete"`
}

// LaneInfo says what waits for a target, what is in flight to it, and how many attempts Failed in the last 15 minutes.
type LaneInfo struct {
	// Kind is http (webhooks and gRPC methods), queue, connection or mail.
	Kind       string `json:"kind"`
	Target     string `json:"target"`
	Connection string `json:"connection,omitempty"`
	// State is ready, full, slow, no_workers or away.
	State string `json:"state"`
	// Since is when the last worker left, or since when the connection is away.
	Since           *time.Time   `json:"since,omitempty"`
	Waiting         int64        `json:"waiting"`
	More            bool         `json:"more"`
	InFlight        int64        `json:"in_flight"`
	Capacity        int64        `json:"capacity"`
	OldestOverdueMS int64        `json:"oldest_overdue_ms"`
	Failed          int64        `json:"failed"`
	LastFailure     *LaneFailure `json:"last_failure,omitempty"`
}

// LaneFailure is the last failed attempt of a lane. RetryAt is set if the receiver asked for a pause.
type LaneFailure struct {
	At      time.Time  `json:"at"`
	Reason  string     `json:"reason"`
	RetryAt *time.Time `json:"retry_at,omitempty"`
}

// Lanes lists the targets that have due tasks, deliveries in flight, or attempts that failed in the last 15 minutes.
func (c *Client) Lanes(ctx context.Context) (*LaneList, error) {
	return decode[LaneList](ctx, c, get(c.path("lanes"), nil))
}

// WorkerInfo is a worker that is connected to a broker.
type WorkerInfo struct {
	Name     string    `json:"name,omitempty"`
	Address  string    `json:"address,omitempty"`
	Broker   string    `json:"broker"`
	Queues   []string  `json:"queues"`
	InFlight int64     `json:"in_flight"`
	Credit   int64     `json:"credit"`
	Since    time.Time `json:"since"`
}

// workerList is the answer of a call.
type workerList struct {
	Workers []WorkerInfo `json:"workers"`
}

// Workers lists the workers of the namespace.
func (c *Client) Workers(ctx context.Context) ([]WorkerInfo, error) {
	got, err := decode[workerList](ctx, c, get(c.path("workers"), nil))
	if err != nil {
		return nil, err
	}
	return got.Workers, nil
}

// NamespaceInfo counts the tasks of a namespace.
type NamespaceInfo struct {
	Name        string `json:"name"`
	Accepted    int64  `json:"accepted"`
	Scheduled   int64  `json:"scheduled"`
	Paused      int64  `json:"paused"`
	Done        int64  `json:"done"`
	Dead        int64  `json:"dead"`
	Cancelled   int64  `json:"cancelled"`
	DeadLetters int64  `json:"dead_letters"`
}

// NamespacePage is one page of namespaces. Next is empty on the last page.
type NamespacePage struct {
	Namespaces []NamespaceInfo `json:"namespaces"`
	Next       string          `json:"next,omitempty"`
}

// Namespaces lists all namespaces by name. It needs an admin token.
func (c *Client) Namespaces(ctx context.Context, filters ...Filter) iter.Seq2[NamespaceInfo, error] {
	return pages(filters, func(filters []Filter) ([]NamespaceInfo, string, error) {
		page, err := decode[NamespacePage](ctx, c, get("/v1/namespaces", queryOf(filters)))
		if err != nil {
			return nil, "", err
		}
		return page.Namespaces, page.Next, nil
	})
}

// Topology has the brokers of a cluster. Leader is empty while there is none.
type Topology struct {
	Leader  string   `json:"leader,omitempty"`
	Brokers []Broker `json:"brokers"`
}

// Broker is a broker with the partitions that it owns.
type Broker struct {
	Address       string    `json:"address"`
	Partitions    []int     `json:"partitions"`
	LastHeartbeat time.Time `json:"last_heartbeat"`
	// ClockAheadMS is how far its clock is ahead of the store's; nil of a broker without a cluster.
	ClockAheadMS *int64 `json:"clock_ahead_ms,omitempty"`
}

// Topology shows the brokers of the cluster; the client asks them from now on, too.
func (c *Client) Topology(ctx context.Context) (*Topology, error) {
	topology, err := decode[Topology](ctx, c, get("/v1/topology", nil))
	if err != nil {
		return nil, err
	}
	c.core.remember(topology)
	return topology, nil
}

// Identity is what the token of the client grants, and which broker answered.
type Identity struct {
	// Tokens is false if the broker has none: every caller is an admin.
	Tokens     bool               `json:"tokens"`
	Admin      bool               `json:"admin"`
	Namespaces []GrantedNamespace `json:"namespaces"`
	Broker     string             `json:"broker"`
	Cluster    string             `json:"cluster,omitempty"`
	Store      string             `json:"store"`
	Version    string             `json:"version"`
	Time       time.Time          `json:"time"`
}

// GrantedNamespace has the rights in a namespace: read, produce, consume, operate.
type GrantedNamespace struct {
	Name   string   `json:"name"`
	Rights []string `json:"rights"`
}

// Whoami shows what the token grants.
func (c *Client) Whoami(ctx context.Context) (*Identity, error) {
	return decode[Identity](ctx, c, get("/v1/whoami", nil))
}

// Readiness says whether a broker is ready, and why not.
type Readiness struct {
	Ready    bool     `json:"ready"`
	Reasons  []string `json:"reasons"`
	Warnings []string `json:"warnings"`
}

// Ready asks whether the broker is ready. A broker that is not fails the call with [ErrNotReady].
func (c *Client) Ready(ctx context.Context) (*Readiness, error) {
	return decode[Readiness](ctx, c, call{method: http.MethodGet, path: "/readyz", once: true})
}

// Alive asks whether the broker answers at all.
func (c *Client) Alive(ctx context.Context) error {
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/livez", once: true})
	return err
}

// Metrics returns the metrics of the broker as OpenMetrics text.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	got, err := c.do(ctx, get("/metrics", nil))
	return string(got.body), err
}

// OpenAPI returns the OpenAPI document of the broker.
func (c *Client) OpenAPI(ctx context.Context) (json.RawMessage, error) {
	got, err := c.do(ctx, get("/openapi.json", nil))
	return got.body, err
}

// LiveSecond is what happened within the last seconds. Leader and Brokers are those of
// [Client.LiveAll].
type LiveSecond struct {
	At              time.Time  `json:"at"`
	Counts          LiveCounts `json:"counts"`
	Waiting         int64      `json:"waiting"`
	InFlight        int64      `json:"in_flight"`
	OldestOverdueMS *int64     `json:"oldest_overdue_ms,omitempty"`
	Rates           LiveRates  `json:"rates"`
	LagMS           *Lag       `json:"lag_ms,omitempty"`
	Attempts        int64      `json:"attempts"`
	Leader          string     `json:"leader,omitempty"`
	Brokers         []Broker   `json:"brokers,omitempty"`
}

// LiveCounts counts tasks by state.
type LiveCounts struct {
	Accepted    int64 `json:"accepted"`
	Scheduled   int64 `json:"scheduled"`
	Firing      int64 `json:"firing"`
	Paused      int64 `json:"paused"`
	Done        int64 `json:"done"`
	Dead        int64 `json:"dead"`
	Cancelled   int64 `json:"cancelled"`
	DeadLetters int64 `json:"dead_letters"`
}

// LiveRates are ends per second.
type LiveRates struct {
	Done   float64 `json:"done"`
	Failed float64 `json:"failed"`
	Dead   float64 `json:"dead"`
}

// Live iterates over what happens in the namespace, one value a second, until the context ends or
// the connection breaks.
func (c *Client) Live(ctx context.Context) iter.Seq2[LiveSecond, error] {
	return c.live(ctx, c.path("live"))
}

// LiveAll is [Client.Live] for all namespaces. It needs an admin token.
func (c *Client) LiveAll(ctx context.Context) iter.Seq2[LiveSecond, error] {
	return c.live(ctx, "/v1/live")
}

// liveEventBytesMax bounds one event: counts, and the brokers of a cluster.
const liveEventBytesMax = 1 << 20

func (c *Client) live(ctx context.Context, path string) iter.Seq2[LiveSecond, error] {
	return func(yield func(LiveSecond, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		broker, _ := c.core.pick("", 0)
		response, err := c.send(ctx, broker, call{method: http.MethodGet, path: path})
		if err != nil {
			yield(LiveSecond{}, err)
			return
		}
		defer response.Body.Close()
		if response.StatusCode >= 300 {
			body, _ := readBody(response)
			yield(LiveSecond{}, newProblem(response.StatusCode, response.Header, body))
			return
		}
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, liveEventBytesMax)
		for lines.Scan() {
			data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
			if !ok {
				continue
			}
			var second LiveSecond
			if err := json.Unmarshal(data, &second); err != nil {
				yield(LiveSecond{}, &AnswerError{Path: path, Err: err})
				return
			}
			if !yield(second, nil) {
				return
			}
		}
		if err := errors.Join(ctx.Err(), lines.Err()); err != nil {
			yield(LiveSecond{}, err)
		}
	}
}
