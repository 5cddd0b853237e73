package punctual

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Duration is a [time.Duration] that is written as the broker writes it: 500ms, 15m, 1d12h.
// The broker counts in whole milliseconds; a fraction of a millisecond is rounded up.
type Duration time.Duration

// Std returns the duration as a [time.Duration].
func (d Duration) Std() time.Duration { return time.Duration(d) }

// durationUnits are the units in the order in which they are written, largest first. Weeks are
// read but not written, as the broker does.
var durationUnits = []struct {
	name string
	size time.Duration
}{
	{"w", 7 * 24 * time.Hour},
	{"d", 24 * time.Hour},
	{"h", time.Hour},
	{"m", time.Minute},
	{"s", time.Second},
	{"ms", time.Millisecond},
}

// String returns the text that the API uses.
func (d Duration) String() string {
	rest := time.Duration(d)
	if rest < 0 {
		return "-" + Duration(-rest).String()
	}
	if part := rest % time.Millisecond; part > 0 {
		rest += time.Millisecond - part
	}
	if rest == 0 {
		return "0s"
	}
	var text []byte
	for _, unit := range durationUnits[1:] {
		if rest >= unit.size {
			text = strconv.AppendInt(text, int64(rest/unit.size), 10)
			text = append(text, unit.name...)
			rest %= unit.size
		}
	}
	return string(text)
}

// MarshalJSON writes the duration as a JSON string.
func (d Duration) MarshalJSON() ([]byte, error) {
	return []byte(`"` + d.String() + `"`), nil
}

// UnmarshalJSON reads a duration from a JSON string.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	if text == nil {
		return nil
	}
	parsed, err := ParseDuration(*text)
	if err != nil {
		return err
	}
	*d = Duration(parsed)
	return nil
}

// ParseDuration reads a duration as the API writes it: 500ms, 15m, 1h30m, 30d, or ISO 8601 (PT15M).
func ParseDuration(text string) (time.Duration, error) {
	if iso, ok := strings.CutPrefix(text, "P"); ok {
		return parseISO(text, iso)
	}
	var sum time.Duration
	units := durationUnits
	rest := text
	if rest == "" {
		return 0, durationError(text)
	}
	for rest != "" {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		letters := len(rest[digits:]) - len(strings.TrimLeft(rest[digits:], "wdhms"))
		number, err := strconv.ParseInt(rest[:digits], 10, 64)
		if err != nil {
			return 0, durationError(text)
		}
		name := rest[digits : digits+letters]
		found := -1
		for i, unit := range units {
			if unit.name == name {
				found = i
			}
		}
		if found < 0 {
			return 0, durationError(text)
		}
		part, err := multiply(text, number, units[found].size)
		if err != nil {
			return 0, err
		}
		sum += part
		if sum < 0 {
			return 0, durationError(text)
		}
		units = units[found+1:]
		rest = rest[digits+letters:]
	}
	return sum, nil
}

func parseISO(text, iso string) (time.Duration, error) {
	date, clock, hasClock := strings.Cut(iso, "T")
	if (hasClock && clock == "") || iso == "" {
		return 0, durationError(text)
	}
	var sum time.Duration
	for _, part := range []struct{ text, units string }{{date, "WD"}, {clock, "HMS"}} {
		sizes := map[byte]time.Duration{
			'W': 7 * 24 * time.Hour, 'D': 24 * time.Hour,
			'H': time.Hour, 'M': time.Minute, 'S': time.Second,
		}
		rest, units := part.text, part.units
		for rest != "" {
			end := strings.IndexAny(rest, units)
			if end < 1 {
				return 0, durationError(text)
			}
			unit := rest[end]
			whole, fraction, hasFraction := strings.Cut(rest[:end], ".")
			number, err := strconv.ParseInt(whole, 10, 64)
			if err != nil || number < 0 || (hasFraction && unit != 'S') {
				return 0, durationError(text)
			}
			amount, err := multiply(text, number, sizes[unit])
			if err != nil {
				return 0, err
			}
			sum += amount
			if hasFraction {
				seconds, err := strconv.ParseFloat("0."+fraction, 64)
				if err != nil {
					return 0, durationError(text)
				}
				sum += time.Duration(seconds * float64(time.Second))
			}
			units = units[strings.IndexByte(units, unit)+1:]
			rest = rest[end+1:]
		}
	}
	return sum, nil
}

func multiply(text string, number int64, size time.Duration) (time.Duration, error) {
	product := time.Duration(number) * size
	if number != 0 && product/size != time.Duration(number) {
		return 0, durationError(text)
	}
	return product, nil
}

func durationError(text string) error {
	return fmt.Errorf("punctual: %q is not a duration like 500ms, 15s, 15m, 1h30m, 30d or PT15M", text)
}
