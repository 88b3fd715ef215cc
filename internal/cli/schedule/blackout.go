package schedule

import (
	"fmt"
	"strings"
	"time"
)

// Blackout is a time in which no run starts: [From, To).
type Blackout struct {
	From, To time.Time
	text     string
}

// dateLayout is of whole days, timeLayout of minutes.
const (
	dateLayout = "2006-01-02"
	timeLayout = "2006-01-02T15:04"
)

// ParseBlackout reads a day, as 2026-12-25, or two days or times with a slash between them, as
// 2026-12-20/2027-01-07 or 2026-12-20T18:00/2026-12-21T06:00, in the time zone. A last day
// is within.
func ParseBlackout(text string, zone *time.Location) (Blackout, error) {
	from, to, two := strings.Cut(text, "/")
	if !two {
		to = from
	}
	b := Blackout{text: text}
	var err error
	if b.From, _, err = parseTime(from, zone); err == nil {
		var day bool
		if b.To, day, err = parseTime(to, zone); day {
			b.To = b.To.AddDate(0, 0, 1)
		}
	}
	if err != nil {
		return b, fmt.Errorf("blackout %q: %w", text, err)
	}
	if !b.From.Before(b.To) {
		return b, fmt.Errorf("blackout %q: it ends before it begins", text)
	}
	return b, nil
}

func parseTime(text string, zone *time.Location) (at time.Time, day bool, err error) {
	if at, err = time.ParseInLocation(dateLayout, text, zone); err == nil {
		return at, true, nil
	}
	if at, err = time.ParseInLocation(timeLayout, text, zone); err != nil {
		return at, false, fmt.Errorf("%q: want a day as %s, or a time as %s", text, dateLayout, timeLayout)
	}
	return at, false, nil
}

// contains is true of times in it.
func (b Blackout) contains(at time.Time) bool { return !at.Before(b.From) && at.Before(b.To) }
