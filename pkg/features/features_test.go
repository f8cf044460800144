package features

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	defaults := Gates{Topology: true, VolumeAttributesClass: true}
	tests := map[string]struct {
		flags     []string
		want      Gates
		wantNotes []string // one phrase for each note, in order
		wantErrs  []string // phrases; empty means success
	}{
		"nothing asked gives the defaults":  {want: defaults},
		"an empty value gives the defaults": {flags: []string{""}, want: defaults},
		"a GA gate is accepted with a notice": {
			flags: []string{"Topology=true"}, want: defaults,
			wantNotes: []string{"Topology is generally available and will be removed"},
		},
		"topology can be switched off": {
			flags: []string{"Topology=false"}, want: Gates{VolumeAttributesClass: true},
			wantNotes: []string{"Topology"},
		},
		"choosing VolumeAttributesClass is remembered": {
			flags: []string{"VolumeAttributesClass=true"}, want: Gates{Topology: true, VolumeAttributesClass: true, VolumeAttributesClassSet: true},
			wantNotes: []string{"VolumeAttributesClass"},
		},
		"choosing it off is remembered too": {
			flags: []string{"VolumeAttributesClass=false"}, want: Gates{Topology: true, VolumeAttributesClassSet: true},
			wantNotes: []string{"VolumeAttributesClass"},
		},
		"AllAlpha switches both alphas on": {
			flags: []string{"AllAlpha=true"},
			want:  Gates{Topology: true, VolumeAttributesClass: true, CrossNamespaceVolumeDataSource: true, ReleaseLeaderElectionOnExit: true},
		},
		"a gate by name wins over AllAlpha": {
			flags: []string{"AllAlpha=true,ReleaseLeaderElectionOnExit=false"},
			want:  Gates{Topology: true, VolumeAttributesClass: true, CrossNamespaceVolumeDataSource: true},
		},
		"AllBeta affects nothing of ours": {flags: []string{"AllBeta=true"}, want: defaults},
		"repeated flags are merged and the last one wins": {
			flags: []string{"CrossNamespaceVolumeDataSource=true,ReleaseLeaderElectionOnExit=true", "ReleaseLeaderElectionOnExit=false"},
			want:  Gates{Topology: true, VolumeAttributesClass: true, CrossNamespaceVolumeDataSource: true},
		},
		"a retired gate is ignored with one note": {
			flags: []string{"HonorPVReclaimPolicy=true"}, want: defaults,
			wantNotes: []string{"HonorPVReclaimPolicy is ignored"},
		},
		"a retired gate cannot be undone": {
			flags: []string{"HonorPVReclaimPolicy=false"}, wantErrs: []string{"HonorPVReclaimPolicy cannot be set to false"},
		},
		"gates of the API server are ignored with one note each, sorted": {
			flags: []string{"WatchList=true,APIServerIdentity=false"}, want: defaults,
			wantNotes: []string{"APIServerIdentity is ignored", "WatchList is ignored"},
		},
		"so are those of its gates that are generally available": {
			flags: []string{"ConsistentListFromCache=true,APIServerTracing=true"}, want: defaults,
			wantNotes: []string{"APIServerTracing is ignored", "ConsistentListFromCache is ignored"},
		},
		"unknown gates are all named, with the known ones": {
			flags:    []string{"Foo=true,Bar=false"},
			wantErrs: []string{"unknown feature gate Bar, Foo: known are AllAlpha, AllBeta, CrossNamespaceVolumeDataSource, ReleaseLeaderElectionOnExit, Topology, VolumeAttributesClass"},
		},
		"logging gates are not reachable": {
			flags: []string{"LoggingAlphaOptions=true"}, wantErrs: []string{"unknown feature gate LoggingAlphaOptions"},
		},
		"names are case-sensitive": {flags: []string{"topology=true"}, wantErrs: []string{"unknown feature gate topology"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked Asked
			for _, f := range tc.flags {
				if err := asked.Set(f); err != nil {
					t.Fatal(err)
				}
			}
			got, notes, err := Resolve(asked)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("gates (-want +got):\n%s", diff)
			}
			if (err != nil) != (len(tc.wantErrs) > 0) {
				t.Fatalf("error %v, want phrases %q", err, tc.wantErrs)
			}
			for _, want := range tc.wantErrs {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not mention %q", err, want)
				}
			}
			if len(notes) != len(tc.wantNotes) {
				t.Fatalf("notes %q, want %d", notes, len(tc.wantNotes))
			}
			for i, want := range tc.wantNotes {
				if !strings.Contains(notes[i], want) {
					t.Errorf("note %q does not mention %q", notes[i], want)
				}
			}
		})
	}
}

func TestAskedRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Topology=maybe":       "Topology=maybe",
		"Topology":             "missing bool value for Topology",
		"=true":                "missing name",
		"AllAlpha=true,Foo=on": "Foo=on",
	} {
		asked := Asked{"Before": true}
		err := asked.Set(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Set(%q) = %v, want an error with %q", text, err, want)
		}
		if diff := cmp.Diff(Asked{"Before": true}, asked); diff != "" {
			t.Errorf("Set(%q) changed the value (-want +got):\n%s", text, diff)
		}
	}
}

func TestAskedPrintsSorted(t *testing.T) {
	t.Parallel()
	var asked Asked
	if got := asked.String(); got != "" {
		t.Errorf("empty prints %q", got)
	}
	if err := asked.Set(" B=1, A=F ,"); err != nil {
		t.Fatal(err)
	}
	if got, want := asked.String(), "A=false,B=true"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}

// Each gate that can be set is shown, also those that are generally available.
func TestHelpShowsEachGate(t *testing.T) {
	t.Parallel()
	want := []string{
		"AllAlpha=true|false (ALPHA - default=false)",
		"AllBeta=true|false (BETA - default=false)",
		"CrossNamespaceVolumeDataSource=true|false (ALPHA - default=false)",
		"ReleaseLeaderElectionOnExit=true|false (ALPHA - default=false)",
		"Topology=true|false (GA - default=true)",
		"VolumeAttributesClass=true|false (GA - default=true)",
	}
	if diff := cmp.Diff(want, Help()); diff != "" {
		t.Errorf("help (-want +got):\n%s", diff)
	}
}
