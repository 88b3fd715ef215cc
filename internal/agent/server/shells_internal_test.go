// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestShellsThatNobodyAttends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ended := map[string]time.Duration{}
		s := newShells()
		s.patience, s.hangUp = time.Minute, func(id string) { ended[id] = time.Since(began) }
		s.keep("left")
		s.keep("attended")
		time.Sleep(50 * time.Second)
		s.keep("attended")
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if len(ended) != 1 || ended["left"] != time.Minute {
			t.Errorf("ended %v, want left after a minute", ended)
		}
		s.close()
		s.keep("late")
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(ended) != 1 {
			t.Errorf("ended after the agent: %v", ended)
		}
	})
}
