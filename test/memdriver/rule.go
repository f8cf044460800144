package memdriver

import (
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Rule changes how the driver treats some calls. A call follows at most one rule: the newest that matches.
// The steps of a call are, in order: Delay and Hold, the work, Lag, Code, Edit. They go on when the caller
// has given up, as a real backend would, and until then other calls for the same name are answered Aborted.
type Rule struct {
	// Method is the short name, as "CreateVolume". Empty: every method.
	Method string
	// Key is the volume or snapshot name (create) or id (all else). Empty: any.
	Key string
	// When, if not nil, has to agree as well. It sees the call as it begins and runs under the driver's lock.
	When func(Call) bool
	// Fresh leaves out creates of volumes that exist already.
	Fresh bool
	// Times is how many calls the rule serves; it is gone after that. Zero: no end.
	Times int

	// Delay is waited for before the work. A driver that is stopped meanwhile never does the work.
	Delay time.Duration
	// Hold, if not nil, is waited for before the work; close it to go on.
	Hold <-chan struct{}
	// Hang keeps the call until its caller gives up; the work is never done.
	Hang bool
	// Skip leaves out the work; the answer is an empty message.
	Skip bool
	// Lag is waited for between the work and the answer. A driver that is stopped meanwhile has done the work.
	Lag time.Duration
	// Code, if not OK, is answered instead of doing the work, or after it with Late.
	Code codes.Code
	// Message goes with Code. Default: "told to fail".
	Message string
	// Late does the work before Code is answered: the volume exists and nobody was told.
	Late bool
	// Edit, if not nil, gets a good answer and returns what is sent in its place.
	Edit func(answer proto.Message) proto.Message
}

// Slow makes every call of the method take at least d, before the work.
func Slow(method string, d time.Duration) Rule { return Rule{Method: method, Delay: d} }

// Fail answers code to the next calls of the method without doing anything. times 0: no end.
func Fail(method string, code codes.Code, times int) Rule {
	return Rule{Method: method, Code: code, Times: times}
}

// FailLate does the work and then answers code, as a driver does whose answer is lost.
func FailLate(method string, code codes.Code, times int) Rule {
	return Rule{Method: method, Code: code, Times: times, Late: true}
}

// Hang never answers the next calls of the method and does nothing. times 0: no end.
func Hang(method string, times int) Rule { return Rule{Method: method, Hang: true, Times: times} }

// Block holds every call of the method before its work until release is called. release may be called twice.
func Block(method string) (rule Rule, release func()) {
	hold := make(chan struct{})
	once := make(chan struct{}, 1)
	once <- struct{}{}
	return Rule{Method: method, Hold: hold}, func() {
		select {
		case <-once:
			close(hold)
		default:
		}
	}
}

// NoVolume makes CreateVolume answer OK without a volume, which it has made.
func NoVolume(times int) Rule {
	return Rule{Method: "CreateVolume", Times: times, Edit: func(proto.Message) proto.Message {
		return &csi.CreateVolumeResponse{}
	}}
}

// EmptyID makes CreateVolume answer a volume without an id.
func EmptyID(times int) Rule {
	return editVolume(times, func(volume *csi.Volume) { volume.VolumeId = "" })
}

// Size makes CreateVolume answer this size whatever the volume has.
func Size(bytes int64, times int) Rule {
	return editVolume(times, func(volume *csi.Volume) { volume.CapacityBytes = bytes })
}

// NoSource makes CreateVolume leave out the content source.
func NoSource(times int) Rule {
	return editVolume(times, func(volume *csi.Volume) { volume.ContentSource = nil })
}

// EmptySegment makes CreateVolume answer an accessible topology of one empty segment.
func EmptySegment(times int) Rule {
	return editVolume(times, func(volume *csi.Volume) { volume.AccessibleTopology = []*csi.Topology{{}} })
}

func editVolume(times int, edit func(*csi.Volume)) Rule {
	return Rule{Method: "CreateVolume", Times: times, Edit: func(answer proto.Message) proto.Message {
		if response, ok := answer.(*csi.CreateVolumeResponse); ok && response.GetVolume() != nil {
			edit(response.GetVolume())
		}
		return answer
	}}
}

// active is a rule in force, with the calls it still serves.
type active struct {
	Rule
	left int
}

func (a *active) matches(call Call) bool {
	return (a.Method == "" || a.Method == call.Method) &&
		(a.Key == "" || a.Key == call.Key) &&
		(a.Times == 0 || a.left > 0) &&
		(a.When == nil || a.When(call))
}
