// Package punctual is the client of Punctual, a timer service: you tell it when, and it calls you
// back on time, by webhook or through a queue.
//
// A [Client] has the calls of the HTTP API, a [Worker] handles the deliveries of queues, and a
// [TouchBuffer] coalesces heartbeats. Package webhook verifies and handles webhooks, package
// punctualtest starts a broker with a virtual clock for tests.
package punctual

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Client calls the brokers of one cluster about one namespace. It is safe for concurrent use.
type Client struct {
	core      *core
	namespace string
	token     string
}

// An Option configures a [Client].
type Option func(*settings)

// settings are what options choose.
type settings struct {
	namespace      string
	token          string
	brokers        []string
	http           *http.Client
	triesMax       int
	retryFor       time.Duration
	attemptTimeout time.Duration
	discover       bool
}

const (
	// defaultURL is where a broker listens by default.
	defaultURL = "http://127.0.0.1:7400"
	// triesMaxDefault lets a call outlast a take-over of seven seconds, with pauses up to a second.
	triesMaxDefault = 20
	// retryForDefault is the lease of a dead broker (5 s) with the time to take over, twice.
	retryForDefault = 15 * time.Second
	// attemptTimeoutDefault is how long a broker may be silent before the next one is asked.
	attemptTimeoutDefault = 10 * time.Second
	// connectTimeout is short because the next broker is tried at once.
	connectTimeout = 3 * time.Second
	// idleConnectionsMax is kept open per broker: enough for the polls and calls of a busy worker.
	idleConnectionsMax = 128
)

// Namespace chooses the namespace; the default is "default".
func Namespace(name string) Option { return func(s *settings) { s.namespace = name } }

// Token authenticates the client. The default is the environment variable PUNCTUAL_TOKEN.
func Token(secret string) Option { return func(s *settings) { s.token = secret } }

// Brokers adds the URLs of further brokers of the same cluster.
func Brokers(urls ...string) Option {
	return func(s *settings) { s.brokers = append(s.brokers, urls...) }
}

// HTTPClient replaces the HTTP client, for certificates, proxies and traces.
func HTTPClient(client *http.Client) Option { return func(s *settings) { s.http = client } }

// Retries bounds the repetitions of a call that is safe to repeat: how often it is tried, and for
// how long. Retries(1, 0) switches repetition off.
func Retries(tries int, total time.Duration) Option {
	return func(s *settings) { s.triesMax, s.retryFor = tries, total }
}

// AttemptTimeout is how long the client waits for the answer of one broker.
func AttemptTimeout(most time.Duration) Option { return func(s *settings) { s.attemptTimeout = most } }

// NoDiscovery keeps the client to the brokers that it was given. Use it where the addresses of the
// topology cannot be reached.
func NoDiscovery() Option { return func(s *settings) { s.discover = false } }

// New makes a client. The URL may be several ones, separated by commas; if it is empty it is taken
// from the environment variable PUNCTUAL_URL, or is http://127.0.0.1:7400. New does not connect.
func New(brokerURL string, options ...Option) (*Client, error) {
	chosen := settings{
		namespace:      "default",
		token:          os.Getenv("PUNCTUAL_TOKEN"),
		triesMax:       triesMaxDefault,
		retryFor:       retryForDefault,
		attemptTimeout: attemptTimeoutDefault,
		discover:       true,
	}
	for _, option := range options {
		option(&chosen)
	}
	var bases []string
	brokerURL = cmp.Or(brokerURL, os.Getenv("PUNCTUAL_URL"), defaultURL)
	for _, text := range append(strings.Split(brokerURL, ","), chosen.brokers...) {
		base, err := parseBase(text)
		if err != nil {
			return nil, err
		}
		bases = append(bases, base)
	}
	if chosen.http == nil {
		chosen.http = &http.Client{Transport: newTransport()}
	}
	return &Client{
		core:      newCore(bases, chosen),
		namespace: chosen.namespace,
		token:     chosen.token,
	}, nil
}

// parseBase checks the URL of a broker and returns it without a slash at its end.
func parseBase(text string) (string, error) {
	parsed, err := url.Parse(strings.TrimSpace(text))
	if err != nil {
		return "", fmt.Errorf("punctual: URL of a broker: %w", err)
	}
	if (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" {
		return "", fmt.Errorf("punctual: URL of a broker: %q must be like http://HOST:PORT", text)
	}
	return strings.TrimRight(parsed.String(), "/"), nil
}

func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: connectTimeout,
		MaxIdleConnsPerHost: idleConnectionsMax,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
		ReadBufferSize:      64 << 10,
		WriteBufferSize:     64 << 10,
	}
}

// Namespace returns a client of another namespace that shares the connections of this one.
func (c *Client) Namespace(name string) *Client {
	return &Client{core: c.core, namespace: name, token: c.token}
}

// WithToken returns a client with another token that shares the connections of this one.
func (c *Client) WithToken(secret string) *Client {
	return &Client{core: c.core, namespace: c.namespace, token: secret}
}

// Close closes idle connections. The client can still be used.
func (c *Client) Close() { c.core.http.CloseIdleConnections() }

// path makes a path of the namespace from segments, which are escaped.
func (c *Client) path(segments ...string) string {
	var path strings.Builder
	path.WriteString("/v1/" + escapeSegment(c.namespace))
	for _, segment := range segments {
		path.WriteString("/" + escapeSegment(segment))
	}
	return path.String()
}

// escapeSegment escapes a segment of a path. A dot segment would be removed from the path on its
// way, so that its dots are escaped, too.
func escapeSegment(segment string) string {
	if segment == "." || segment == ".." {
		return strings.ReplaceAll(segment, ".", "%2E")
	}
	return url.PathEscape(segment)
}

// taskPath is the path of a task. An empty key would name the list of all tasks, so it is refused.
func (c *Client) taskPath(keyOrID string, segments ...string) (string, error) {
	if keyOrID == "" {
		return "", errors.New("punctual: the key of the task is empty")
	}
	return c.path(append([]string{"tasks", keyOrID}, segments...)...), nil
}
