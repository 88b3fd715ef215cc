package diagnose
import ("testing";"strings";"time")
func TestZZ(t *testing.T){
 for _, q := range []string{"1e999999999","1E-999999999","9999999999999999999999999999E30","-5"} {
  s := refusedBy(2, "exceeded quota: g, requested: pods="+q+", used: pods="+q+", limited: pods=1")
  t.Log(Explain(s, now)[0].Seen) }
 for _, w := range []string{"0/1 nodes are available: ", "x, ", "MountVolume.SetUp failed for volume \"", "unable to validate against any security context constraint: [, provider ", "0/0/"} {
  b := time.Now(); s := withPods(2, unschedulable(strings.Repeat(w, 5000))).with("FailedMount", strings.Repeat(w,5000)); s.event("StatefulSet", env, "FailedCreate", "create Pod ml-dev-env-9 in StatefulSet ml-dev-env failed error: "+strings.Repeat(w,5000)); Explain(s, now); t.Log(time.Since(b)) }
}
