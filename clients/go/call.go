package punctual

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// core sends requests to the brokers of a cluster. It decides which broker is asked and whether a
// request is repeated; all clients that are derived from one share it.
type core struct {
	http           *http.Client
	scheme         string
	configured     []string
	triesMax       int
	retryFor       time.Duration
	attemptTimeout time.Duration
	discover       bool

	mu        sync.Mutex
	brokers   []string
	preferred int
	learned   time.Time
	learning  bool
}

const (
	// learnEvery is how old the known topology may be before a call refreshes it.
	learnEvery = 30 * time.Second
	// pauseFirst and pauseMax bound the pause after every broker has failed a call.
	pauseFirst = 50 * time.Millisecond
	pauseMax   = time.Second
	// answerBytesMax is above the largest page: 1,000 entries with a payload of 256 KiB each.
	answerBytesMax = 512 << 20
)

func newCore(bases []string, chosen settings) *core {
	scheme, _, _ := strings.Cut(bases[0], "://")
	return &core{
		http:           chosen.http,
		scheme:         scheme,
		configured:     bases,
		brokers:        slices.Clone(bases),
		triesMax:       max(chosen.triesMax, 1),
		retryFor:       chosen.retryFor,
		attemptTimeout: chosen.attemptTimeout,
		discover:       chosen.discover,
	}
}

// call is one request of the API.
type call struct {
	method      string
	path        string
	query       url.Values
	header      http.Header
	body        []byte
	contentType string
	// repeatable says that the call can be repeated although it may have been carried out.
	repeatable bool
	// once says that the call is never repeated, because its caller does so.
	once bool
	// broker is asked first, if it is not empty.
	broker string
	// wait is how long the broker may hold the request before it answers.
	wait time.Duration
}

// answer is what a broker responded with a status below 300.
type answer struct {
	status int
	body   []byte
}

// do sends the call and repeats it where that is safe: if the broker said that nothing was done,
// if no connection was made, or if the call is repeatable. Every known broker is tried at once;
// then pauses grow. It returns the last error when its tries or its time are used up.
func (c *Client) do(ctx context.Context, call call) (answer, error) {
	started := time.Now()
	pause := pauseFirst
	tried := 0
	for try := 1; ; try++ {
		broker, index := c.core.pick(call.broker, tried)
		got, err := c.once(ctx, broker, call)
		if err == nil {
			if call.broker == "" {
				c.core.prefer(index)
			}
			c.learn()
			return got, nil
		}
		safe, otherBroker, wanted := repeatAfter(err, call.repeatable)
		if !safe || call.once || try >= c.core.triesMax || ctx.Err() != nil {
			return answer{}, err
		}
		if otherBroker {
			tried++
			if tried%c.core.count(call.broker) != 0 {
				continue
			}
		}
		sleep := max(wanted, pause/2+rand.N(pause/2+1))
		pause = min(2*pause, pauseMax)
		if time.Since(started)+sleep > c.core.retryFor {
			return answer{}, err
		}
		select {
		case <-ctx.Done():
			return answer{}, errors.Join(ctx.Err(), err)
		case <-time.After(sleep):
		}
	}
}

// repeatAfter decides whether a failed call may be repeated, whether another broker should be
// asked, and after which pause.
func repeatAfter(err error, repeatable bool) (safe, otherBroker bool, pause time.Duration) {
	var problem *Problem
	if errors.As(err, &problem) {
		switch {
		case problem.Type == string(ErrLost.(problemType)):
			return repeatable, true, problem.RetryAfter
		case problem.Status == http.StatusServiceUnavailable && strings.HasPrefix(problem.Type, "urn:punctual:"):
			return true, true, problem.RetryAfter
		case problem.Status == http.StatusTooManyRequests:
			return true, false, problem.RetryAfter
		// A proxy in front of the broker: it does not say whether the broker has the request.
		case problem.Status == http.StatusBadGateway || problem.Status == http.StatusServiceUnavailable ||
			problem.Status == http.StatusGatewayTimeout:
			return repeatable, true, problem.RetryAfter
		}
		return false, false, 0
	}
	var connection *ConnectionError
	if errors.As(err, &connection) {
		return repeatable || !connection.Sent, true, 0
	}
	return false, false, 0
}

// once sends the call to one broker.
func (c *Client) once(ctx context.Context, broker string, call call) (answer, error) {
	limit := c.core.attemptTimeout
	attempt := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		attempt, cancel = context.WithTimeout(ctx, limit+call.wait)
		defer cancel()
	}
	response, err := c.send(attempt, broker, call)
	if err != nil {
		if ctx.Err() != nil {
			return answer{}, ctx.Err()
		}
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := readBody(response)
	if err != nil {
		if ctx.Err() != nil {
			return answer{}, ctx.Err()
		}
		return answer{}, &ConnectionError{Broker: broker, Sent: true, Err: err}
	}
	if response.StatusCode >= 300 {
		return answer{}, newProblem(response.StatusCode, response.Header, body)
	}
	return answer{status: response.StatusCode, body: body}, nil
}

// send sends the request and returns the response with its body unread.
func (c *Client) send(ctx context.Context, broker string, call call) (*http.Response, error) {
	target := broker + call.path
	if len(call.query) > 0 {
		target += "?" + call.query.Encode()
	}
	var body io.Reader
	if call.body != nil {
		body = bytes.NewReader(call.body)
	}
	request, err := http.NewRequestWithContext(ctx, call.method, target, body)
	if err != nil {
		return nil, err
	}
	for name, values := range call.header {
		request.Header[name] = values
	}
	if call.body != nil {
		contentType := call.contentType
		if contentType == "" {
			contentType = "application/json"
		}
		request.Header.Set("Content-Type", contentType)
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	request.Header.Set("User-Agent", "punctual-go")
	response, err := c.core.http.Do(request)
	if err != nil {
		return nil, &ConnectionError{Broker: broker, Sent: !notSent(err), Err: err}
	}
	return response, nil
}

// notSent reports whether the error says that no connection was made.
func notSent(err error) bool {
	var operation *net.OpError
	var name *net.DNSError
	return errors.As(err, &name) || (errors.As(err, &operation) && operation.Op == "dial")
}

func readBody(response *http.Response) ([]byte, error) {
	var buffer bytes.Buffer
	if n := response.ContentLength; n > 0 && n <= answerBytesMax {
		buffer.Grow(int(n) + bytes.MinRead)
	}
	limited := io.LimitReader(response.Body, answerBytesMax+1)
	if _, err := buffer.ReadFrom(limited); err != nil {
		return nil, err
	}
	if buffer.Len() > answerBytesMax {
		return nil, errors.New("the answer is too long")
	}
	return buffer.Bytes(), nil
}

// pick returns the broker for a try: the first one is the given or the preferred broker, the
// following ones are those after it.
func (c *core) pick(first string, tried int) (string, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first != "" {
		if tried%(len(c.brokers)+1) == 0 {
			return first, c.preferred
		}
		tried = tried%(len(c.brokers)+1) - 1
	}
	index := (c.preferred + tried) % len(c.brokers)
	return c.brokers[index], index
}

// count is how many brokers a call can be sent to.
func (c *core) count(first string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first != "" {
		return len(c.brokers) + 1
	}
	return len(c.brokers)
}

func (c *core) prefer(index int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if index < len(c.brokers) {
		c.preferred = index
	}
}

// learn refreshes the known brokers in the background, if they are not fresh.
func (c *Client) learn() {
	core := c.core
	core.mu.Lock()
	due := core.discover && !core.learning && time.Since(core.learned) > learnEvery
	if due {
		core.learning = true
	}
	core.mu.Unlock()
	if !due {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
		defer cancel()
		_, _ = c.topologyOnce(ctx)
		core.mu.Lock()
		core.learning, core.learned = false, time.Now()
		core.mu.Unlock()
	}()
}

// topologyOnce asks the preferred broker for the topology, without repetition, and remembers it.
func (c *Client) topologyOnce(ctx context.Context) (*Topology, error) {
	broker, _ := c.core.pick("", 0)
	got, err := c.once(ctx, broker, call{method: http.MethodGet, path: "/v1/topology"})
	if err != nil {
		return nil, err
	}
	topology := &Topology{}
	if err := json.Unmarshal(got.body, topology); err != nil {
		return nil, err
	}
	c.core.remember(topology)
	return topology, nil
}

// remember adds the brokers of a topology behind the configured ones. A single broker is known
// already, perhaps under another name.
func (c *core) remember(topology *Topology) {
	if !c.discover {
		return
	}
	brokers := slices.Clone(c.configured)
	if len(topology.Brokers) > 1 {
		for _, broker := range topology.Brokers {
			if base := c.scheme + "://" + broker.Address; !slices.Contains(brokers, base) {
				brokers = append(brokers, base)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	preferred := c.brokers[c.preferred]
	c.brokers = brokers
	c.preferred = max(slices.Index(brokers, preferred), 0)
}

// decode sends the call and reads the JSON answer into a value of the type.
func decode[T any](ctx context.Context, c *Client, call call) (*T, error) {
	got, err := c.do(ctx, call)
	if err != nil {
		return nil, err
	}
	value := new(T)
	if err := json.Unmarshal(got.body, value); err != nil {
		return nil, &AnswerError{Path: call.path, Err: err}
	}
	return value, nil
}

// AnswerError is an answer of a broker that this package cannot read.
type AnswerError struct {
	Path string
	Err  error
}

// Error names the path of the call and the error of the JSON decoder.
func (e *AnswerError) Error() string { return "punctual: answer of " + e.Path + ": " + e.Err.Error() }

// Unwrap returns the error of the JSON decoder.
func (e *AnswerError) Unwrap() error { return e.Err }

// jsonCall makes a call with a JSON body.
func jsonCall(method, path string, body any) (call, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return call{}, err
	}
	return call{method: method, path: path, body: text}, nil
}
