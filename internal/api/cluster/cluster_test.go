package cluster

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"os"

	"wherry.dev/internal/pki"
)

func TestFactsSurviveTheConfigMap(t *testing.T) {
	for _, f := range []Facts{
		{Mode: ModeAuto},
		{
			PodNetworks:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/48")},
			ServiceNetworks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, Domain: "cluster.local", DNS: []string{"10.96.0.10"},
			Mode: ModeVXLAN, VNI: 1<<24 - 1, Mask4: 25, Mask6: 80, Cloud: CloudExternal,
		},
	} {
		got, err := FromData(f.Data())
		if err != nil || !reflect.DeepEqual(got, f) {
			t.Errorf("%+v, %v, want %+v", got, err, f)
		}
	}
	for key, bad := range map[string]string{keyPods: "10.0.0.0", keyServices: "x", keyMode: "ipip", keyVNI: "16777216"} {
		data := Facts{Mode: ModeAuto}.Data()
		data[key] = bad
		if _, err := FromData(data); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestTokensNameTheirAuthority(t *testing.T) {
	hashes := map[string]string{}
	pems := map[string][]byte{}
	for _, name := range []string{"ours", "theirs"} {
		ca, err := pki.LoadOrCreateCA(t.TempDir(), name, name, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if pems[name], err = os.ReadFile(ca.CertFile); err != nil {
			t.Fatal(err)
		}
		all, err := CAHashes(pems[name])
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		hashes[name] = all[0]
	}
	token := Token{ID: "abcdef", Secret: "0123456789abcdef", CAHash: hashes["ours"]}
	server := token
	server.Proof = hashes["theirs"]
	if got, err := ParseToken(server.String()); err != nil || got != server {
		t.Errorf("%s: %+v, %v", server, got, err)
	}
	for _, text := range []string{token.String(), "abcdef.0123456789abcdef.sha256:" + hashes["ours"]} {
		if got, err := ParseToken(text); err != nil || got != token {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	if err := token.CheckCA(pems["ours"]); err != nil {
		t.Error(err)
	}
	if err := token.CheckCA(append(pems["theirs"], pems["ours"]...)); err != nil {
		t.Errorf("an authority that is being replaced: %v", err)
	}
	if err := token.CheckCA(pems["theirs"]); err == nil || !strings.Contains(err.Error(), "somebody is in between") {
		t.Error(err)
	}
	for text, want := range map[string]string{"abcdef.0123456789abcdef": "lacks the hash", "": "not a token", "abcdef.0123456789abcdeF." + hashes["ours"]: "not a token"} {
		if _, err := ParseToken(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
