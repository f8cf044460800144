package provision

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

func TestProtocol(t *testing.T) {
	t.Parallel()
	const spaced = 10 * time.Second
	begin := time.Unix(1000, 0)
	// ends is a call that began at a second and ended with err.
	ends := func(at int, err error) call {
		return call{
			start: begin.Add(time.Duration(at) * time.Second), outcome: outcome.OfCreate(err, true),
			code: outcome.Code(err), mayBeRunning: outcome.MayBeRunning(err),
		}
	}
	answer := func(code codes.Code) func(int) call {
		return func(at int) call { return ends(at, status.Error(code, "as told")) }
	}
	ok, final, exists, full := answer(codes.OK), answer(codes.Internal), answer(codes.AlreadyExists), answer(codes.ResourceExhausted)
	away, aborted := answer(codes.Unavailable), answer(codes.Aborted)
	cut := func(at int) call {
		return ends(at, outcome.WithoutAnswer(status.Error(codes.Unavailable, "connection lost")))
	}
	late := func(at int) call {
		return ends(at, outcome.WithoutAnswer(status.Error(codes.DeadlineExceeded, "deadline")))
	}
	for name, tc := range map[string]struct {
		takenOver bool
		calls     []call
		going     bool
		want      ending
	}{
		"a first final error ends":                       {calls: []call{final(0)}, want: over},
		"a first OK ends":                                {calls: []call{ok(0)}, want: over},
		"no answer stays open":                           {calls: []call{late(0)}},
		"OK ends what was cut off":                       {calls: []call{late(0), ok(1)}, want: over},
		"one final error does not end what was cut off":  {calls: []call{late(0), final(20)}},
		"two do not":                                     {calls: []call{late(0), final(20), final(40)}},
		"the third ends it":                              {calls: []call{late(0), final(20), final(40), final(60)}, want: over},
		"a call too soon after the cut one is not count": {calls: []call{cut(0), final(9), final(19), final(29)}},
		"the distance is that of calls that count":       {calls: []call{cut(0), final(10), final(12), final(19), final(20), final(29), final(30)}, want: over},
		"no answer in between begins the count anew":     {calls: []call{cut(0), final(20), final(40), cut(60), final(80), final(100)}},
		"nor does any answer that is not final keep it":  {calls: []call{cut(0), final(20), final(40), away(60), final(80), final(100)}},
		"Unavailable stays open":                         {calls: []call{away(0)}},
		"a final error after it ends at once":            {calls: []call{away(0), away(1), final(2)}, want: over},
		"so does no room":                                {calls: []call{away(0), full(1)}, want: over},
		"but not if an earlier call was cut off":         {calls: []call{cut(0), away(20), final(40)}},
		"nor if a later one was":                         {calls: []call{away(0), cut(20), final(40)}},
		"Aborted says that another call is at work":      {calls: []call{aborted(0), final(20), final(40)}},
		"which the third final error ends":               {calls: []call{aborted(0), final(20), final(40), final(60)}, want: over},
		"what was taken over needs three":                {takenOver: true, calls: []call{final(20), final(40)}},
		"and no more":                                    {takenOver: true, calls: []call{final(20), final(40), final(60)}, want: over},
		"the first of them too soon":                     {takenOver: true, calls: []call{final(0), final(40), final(60)}},
		"rescheduling counts as a final error":           {calls: []call{cut(0), full(20), full(40), full(60)}, want: over},
		"rescheduling at the first call ends":            {calls: []call{full(0)}, want: over},
		"an end wipes the memory":                        {calls: []call{cut(0), ok(1), final(2)}, want: over},

		"AlreadyExists to a first call is a final error":         {calls: []call{exists(0)}, want: over},
		"AlreadyExists ends nothing while the claim lives":       {calls: []call{cut(0), exists(20), exists(40), exists(60), exists(80)}},
		"nor when all calls were answered":                       {calls: []call{away(0), exists(20), exists(40), exists(60)}},
		"nor does it break the row":                              {calls: []call{cut(0), final(20), exists(40), final(60), final(80)}, want: over},
		"when the claim is going the third in a row ends":        {calls: []call{cut(0), exists(20), exists(40), exists(60)}, going: true, want: leftBehind},
		"the second does not":                                    {calls: []call{cut(0), exists(20), exists(40)}, going: true},
		"nor one that comes too soon":                            {calls: []call{cut(0), exists(20), exists(29), exists(39)}, going: true},
		"nor one after another missing answer":                   {calls: []call{cut(0), exists(20), exists(40), cut(60), exists(80)}, going: true},
		"when all calls were answered the first one ends":        {calls: []call{away(0), exists(1)}, going: true, want: leftBehind},
		"a volume that was spoken of is left behind by others":   {calls: []call{cut(0), exists(20), final(40), final(60), final(80)}, going: true, want: leftBehind},
		"without AlreadyExists nothing is left, claim or not":    {calls: []call{cut(0), final(20), final(40), final(60)}, going: true, want: over},
		"AlreadyExists for long, then another error, ends alive": {calls: []call{away(0), exists(20), exists(40), final(60)}, want: over},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p protocol
			if tc.takenOver {
				p = takenOver(begin)
			}
			var end ending
			for _, c := range tc.calls {
				p, end = p.after(c, spaced, tc.going)
			}
			if end != tc.want || p.unanswered != (tc.want == goesOn) || (tc.want != goesOn && p != protocol{}) {
				t.Errorf("ending %d, then %+v, want ending %d", end, p, tc.want)
			}
		})
	}
}

func TestProtocolWait(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		p    protocol
		want time.Duration
	}{
		"nothing unanswered, no wait":         {protocol{since: now}, 0},
		"just taken over, the whole distance": {takenOver(now), 10 * time.Second},
		"called a while ago, what is left":    {protocol{unanswered: true, since: now.Add(-7 * time.Second)}, 3 * time.Second},
		"called long ago, nothing, not < 0":   {protocol{unanswered: true, since: now.Add(-time.Hour)}, 0},
	} {
		if got := tc.p.wait(now, 10*time.Second); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestSpacing(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]time.Duration{10 * time.Second: 10 * time.Second, time.Minute: time.Minute, 10 * time.Hour: time.Minute} {
		if got := spacing(timeout); got != want {
			t.Errorf("with a deadline of %s: %s, want %s", timeout, got, want)
		}
	}
}
